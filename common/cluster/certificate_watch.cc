#include "common/cluster/certificate_watch.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <vector>

#include "absl/time/clock.h"
#include "common/base/log.h"
#include "common/base/status.h"
#include "common/base/thread.h"
#include "common/certs/small_file.h"

namespace bdn {
namespace {

FileDescriptor FileInMemory() {
  FileDescriptor file(memfd_create("bdn-certificates", MFD_CLOEXEC));
  fchmod(file.get(), 0600);
  return file;
}

// The files in RAM that no watch uses, kept for the next watch. A thread of gRPC may open the path
// of one after its watch has ended, so its descriptor must never become another file's: it is never
// closed.
class UnusedFiles {
 public:
  FileDescriptor Take() {
    MutexLock lock(&mu_);
    if (files_.empty()) return FileInMemory();
    FileDescriptor file = std::move(files_.back());
    files_.pop_back();
    return file;
  }
  void Give(FileDescriptor file) {
    MutexLock lock(&mu_);
    files_.push_back(std::move(file));
  }

 private:
  Mutex mu_;
  std::vector<FileDescriptor> files_ ABSL_GUARDED_BY(mu_);
};

UnusedFiles& Unused() {
  static auto* const files = new UnusedFiles;
  return *files;
}

// Gives the file the content `text`, for code that opens its path from now on. A new file takes
// over the descriptor at once, so that no reader sees half of a text.
void Replace(const FileDescriptor& file, const std::string& text) {
  const FileDescriptor next = FileInMemory();
  for (size_t done = 0; done < text.size();) {
    const ssize_t count = write(next.get(), text.data() + done, text.size() - done);
    // After a failed write the old content stays in place.
    if (count <= 0) return;
    done += static_cast<size_t>(count);
  }
  dup3(next.get(), file.get(), O_CLOEXEC);
}

std::string PathOf(const FileDescriptor& file) {
  return absl::StrFormat("/proc/self/fd/%d", file.get());
}

}  // namespace

CertificateWatch::CertificateWatch(TlsFiles files, absl::Duration interval)
    : files_(std::move(files)),
      interval_(interval),
      seen_(ReadFiles()),
      changed_(seen_),
      authority_(Unused().Take()),
      pair_(Unused().Take()) {
  Show(seen_);
  thread_ = StartThread("bdn-certs", [this] { Run(); });
}

CertificateWatch::~CertificateWatch() {
  {
    MutexLock lock(&mu_);
    is_closed_ = true;
    closed_changed_.SignalAll();
  }
  thread_.join();
  Unused().Give(std::move(authority_));
  Unused().Give(std::move(pair_));
}

TlsFiles CertificateWatch::shown() const {
  return {.authority = PathOf(authority_), .certificate = PathOf(pair_), .key = PathOf(pair_)};
}

int CertificateWatch::refusals() const {
  MutexLock lock(&mu_);
  return refusals_;
}

// Reads the files; a text is empty where its file cannot be read.
CertificateWatch::Texts CertificateWatch::ReadFiles() const {
  const auto read = [](const std::string& path) { return ReadSmallFile(path).value_or(""); };
  return {read(files_.authority), read(files_.certificate), read(files_.key)};
}

void CertificateWatch::Show(const Texts& texts) {
  Replace(authority_, texts.authority);
  Replace(pair_, texts.certificate + "\n" + texts.key);
}

void CertificateWatch::Run() {
  for (;;) {
    {
      MutexLock lock(&mu_);
      const absl::Time next = clock_.Now() + interval_;
      while (!is_closed_ && clock_.Now() < next) clock_.WaitUntil(&closed_changed_, &mu_, next);
      if (is_closed_) return;
    }
    Look();
  }
}

void CertificateWatch::Look() {
  Texts now = ReadFiles();
  // Files are replaced one after the other, so only texts that two looks find the same are
  // complete.
  const bool is_settled = now == changed_;
  changed_ = std::move(now);
  if (!is_settled || changed_ == seen_) return;
  const absl::Status status = CheckTlsFiles(files_, absl::Now()).status();
  // They changed during the check: the next look decides about what it finds then.
  if (ReadFiles() != changed_) return;
  seen_ = changed_;
  if (status.ok()) {
    Show(seen_);
    LogInfo("%s, %s and %s have changed, and are used from now on", files_.authority,
            files_.certificate, files_.key);
    return;
  }
  LogError(
      "the files of tls-ca, tls-cert and tls-key have changed and cannot be used: %s; connections "
      "go on with what was there before. Put files there that belong together (bandoneon certs "
      "issue), and they are taken within seconds",
      status.message());
  MutexLock lock(&mu_);
  ++refusals_;
}

}  // namespace bdn
