#include "scheduler/journal_file.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <functional>
#include <utility>

#include "common/base/check.h"
#include "common/base/status.h"

namespace bdn {
namespace {

constexpr const char* kLockName = "lock";
constexpr std::string_view kGenerationPrefix = "generation-";
constexpr int kDigits = 10;
constexpr uint64_t kMostNumber = 9'999'999'999;

std::string NameOf(uint64_t number) {
  return absl::StrFormat("%s%0*d", kGenerationPrefix, kDigits, number);
}

// Returns the number in the name of a generation, and 0 for other names.
uint64_t NumberIn(std::string_view name) {
  if (name.size() != kGenerationPrefix.size() + kDigits || !name.starts_with(kGenerationPrefix)) {
    return 0;
  }
  uint64_t number = 0;
  for (const char digit : name.substr(kGenerationPrefix.size())) {
    if (digit < '0' || digit > '9') return 0;
    number = number * 10 + static_cast<uint64_t>(digit - '0');
  }
  return number;
}

// Returns the error of a system call, from errno.
absl::Status Failed(const char* what, const std::string& path) {
  const int error = errno;
  const bool is_full = error == ENOSPC || error == EDQUOT || error == EFBIG;
  const std::string text =
      absl::StrFormat("the scheduler cannot %s %s: %s", what, path, std::strerror(error));
  return is_full ? absl::ResourceExhaustedError(text) : absl::InternalError(text);
}

absl::Status CheckOwner(const struct stat& found, const std::string& path) {
  if (found.st_uid == geteuid()) return absl::OkStatus();
  return InvalidArgument(
      "%s belongs to user %d, and this scheduler runs as user %d: start the scheduler as that "
      "user, or name another directory for the journal",
      path, found.st_uid, geteuid());
}

absl::Status CheckFile(int fd, const std::string& path) {
  struct stat found = {};
  if (fstat(fd, &found) != 0) return Failed("look at", path);
  if (!S_ISREG(found.st_mode)) {
    return InvalidArgument(
        "%s is no regular file: remove it, or name another directory for the journal", path);
  }
  BDN_RETURN_IF_ERROR(CheckOwner(found, path));
  if ((found.st_mode & 077) != 0) {
    return InvalidArgument(
        "other users have rights to %s, which has mode %04o, and a journal holds the job's "
        "secrets: take these rights away (chmod 600 %s)",
        path, found.st_mode & 07777, path);
  }
  return absl::OkStatus();
}

// Opens a file of the directory that must be a regular one. O_NONBLOCK: a pipe in its stead must
// not stop the scheduler.
absl::StatusOr<FileDescriptor> OpenFile(int directory, const std::string& name, int flags,
                                        const std::string& path) {
  FileDescriptor file(
      openat(directory, name.c_str(), flags | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0600));
  if (!file.is_open() && errno == ELOOP) {
    return InvalidArgument(
        "%s is a symbolic link, which no journal has: remove it, or name another directory for the "
        "journal",
        path);
  }
  if (!file.is_open()) return Failed("open", path);
  BDN_RETURN_IF_ERROR(CheckFile(file.get(), path));
  return file;
}

absl::Status CheckRecords(std::span<const JournalRecord> records) {
  for (const JournalRecord& record : records) {
    if (record.type == 0 || record.type > kMostRecordType) FailCheck("a record has no valid type");
    if (record.payload.size() > kMostRecordBytes) {
      return InvalidArgument("a record of type %d has %d bytes, and the journal takes at most %d",
                             record.type, record.payload.size(), kMostRecordBytes);
    }
  }
  return absl::OkStatus();
}

}  // namespace

JournalFile::JournalFile(std::string directory, JournalHeader header, Fault fault)
    : directory_(std::move(directory)), fault_(std::move(fault)), header_(std::move(header)) {}

absl::StatusOr<JournalFile::Opened> JournalFile::Open(const std::string& directory,
                                                      const std::string& job, Fault fault) {
  if (job.size() > kMostJobIdBytes) {
    return InvalidArgument("the job's id has %d bytes, and a journal takes at most %d", job.size(),
                           kMostJobIdBytes);
  }
  std::unique_ptr<JournalFile> journal(
      new JournalFile(directory, {.user = geteuid(), .job = job}, std::move(fault)));
  BDN_RETURN_IF_ERROR(journal->OpenDirectory());
  BDN_RETURN_IF_ERROR(journal->Lock());
  // Read twice. The first time shows that this is our journal, before anything in it is changed: a
  // new generation stops a scheduler that still runs. The second time counts. It comes after the
  // new generation is there, so that no append succeeds that it does not see.
  BDN_ASSIGN_OR_RETURN(const Found before, journal->FindNewest(kMostNumber + 1));
  journal->header_.predecessor = before.number;
  BDN_RETURN_IF_ERROR(journal->MakeGeneration());
  absl::StatusOr<Found> found = journal->FindNewest(journal->number_);
  if (found.ok() && found->number != before.number) {
    found = AlreadyExists("the journal %s cannot be opened: another scheduler has just begun in it",
                          directory);
  }
  if (!found.ok()) {
    unlinkat(journal->directory_fd_.get(), NameOf(journal->number_).c_str(), 0);
    return found.status();
  }
  return Opened{std::move(journal), std::move(found->records)};
}

absl::Status JournalFile::OpenDirectory() {
  const bool is_new = mkdir(directory_.c_str(), 0700) == 0;
  if (!is_new && errno != EEXIST) return Failed("make the directory", directory_);
  directory_fd_ = FileDescriptor(open(directory_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!directory_fd_.is_open()) return Failed("open the directory", directory_);
  struct stat found = {};
  if (fstat(directory_fd_.get(), &found) != 0) return Failed("look at", directory_);
  BDN_RETURN_IF_ERROR(CheckOwner(found, directory_));
  // Others may read the names, but whoever writes there can take the journal away.
  if ((found.st_mode & 022) != 0) {
    return InvalidArgument(
        "other users may write into %s, which has mode %04o: take that right away (chmod 700 %s)",
        directory_, found.st_mode & 07777, directory_);
  }
  if (!is_new) return absl::OkStatus();
  // The directory's own name must outlive a crash of the machine, too.
  const FileDescriptor parent(
      openat(directory_fd_.get(), "..", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!parent.is_open() || Fails("fsync parent") || fsync(parent.get()) != 0) {
    return Failed("flush the directory", directory_);
  }
  return absl::OkStatus();
}

absl::Status JournalFile::Lock() {
  const std::string path = PathOf(kLockName);
  BDN_ASSIGN_OR_RETURN(lock_, OpenFile(directory_fd_.get(), kLockName, O_RDWR | O_CREAT, path));
  if (flock(lock_.get(), LOCK_EX | LOCK_NB) == 0) return absl::OkStatus();
  if (errno != EWOULDBLOCK) return Failed("lock", path);
  return AlreadyExists(
      "the journal %s cannot be opened: another scheduler of this job is using it. Stop that one "
      "first, or name another directory",
      directory_);
}

absl::StatusOr<std::vector<uint64_t>> JournalFile::ListGenerations() const {
  // Opened anew each time, so that a file system over a network asks its server again.
  const int fd = openat(directory_fd_.get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR* const directory = fd < 0 ? nullptr : fdopendir(fd);
  if (directory == nullptr) {
    const absl::Status status = Failed("list", directory_);
    if (fd >= 0) close(fd);
    return status;
  }
  std::vector<uint64_t> numbers;
  errno = 0;
  while (const dirent* const entry = readdir(directory)) {
    if (const uint64_t number = NumberIn(entry->d_name); number != 0) numbers.push_back(number);
  }
  const absl::Status status = errno == 0 ? absl::OkStatus() : Failed("list", directory_);
  closedir(directory);
  BDN_RETURN_IF_ERROR(status);
  std::ranges::sort(numbers, std::greater());
  return numbers;
}

absl::StatusOr<std::string> JournalFile::ReadWhole(const std::string& name) const {
  const std::string path = PathOf(name);
  BDN_ASSIGN_OR_RETURN(const FileDescriptor file,
                       OpenFile(directory_fd_.get(), name, O_RDONLY, path));
  struct stat found = {};
  if (fstat(file.get(), &found) != 0) return Failed("look at", path);
  if (static_cast<uint64_t>(found.st_size) > kMostGenerationBytes) {
    return InvalidArgument("%s has %d bytes, and no generation of a journal has more than %d", path,
                           found.st_size, kMostGenerationBytes);
  }
  std::string bytes(static_cast<size_t>(found.st_size), '\0');
  size_t used = 0;
  while (used < bytes.size()) {
    const ssize_t got = read(file.get(), bytes.data() + used, bytes.size() - used);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return Failed("read", path);
    if (got == 0) break;  // cut since, by the roll-back of an append
    used += static_cast<size_t>(got);
  }
  bytes.resize(used);
  return bytes;
}

absl::StatusOr<JournalFile::Found> JournalFile::FindNewest(uint64_t limit) const {
  BDN_ASSIGN_OR_RETURN(const std::vector<uint64_t> numbers, ListGenerations());
  Found found;
  uint64_t predecessor = 0;  // the newest that an incomplete generation names
  for (const uint64_t number : numbers) {
    if (number >= limit) continue;
    const std::string name = NameOf(number);
    BDN_ASSIGN_OR_RETURN(const std::string bytes, ReadWhole(name));
    absl::StatusOr<JournalGeneration> read =
        ReadGeneration(std::as_bytes(std::span(bytes)), header_);
    if (!read.ok()) return Annotate(read.status(), "the journal's file " + PathOf(name));
    if (read->is_complete) {
      found = {number, std::move(read->records)};
      break;
    }
    predecessor = std::max(predecessor, read->predecessor);
  }
  // A generation is removed only after a later one is complete, and then that one counts.
  if (found.number < predecessor) {
    return DataLoss(
        "the journal %s lacks its newest complete generation: %s is gone, or its successor is "
        "damaged. Restore the directory from a copy, or remove it to begin the job anew",
        directory_, NameOf(predecessor));
  }
  return found;
}

absl::Status JournalFile::MakeGeneration() {
  BDN_ASSIGN_OR_RETURN(const std::vector<uint64_t> numbers, ListGenerations());
  const uint64_t number = numbers.empty() ? 1 : numbers.front() + 1;
  const std::string name = NameOf(number);
  if (number > kMostNumber) return InvalidArgument("%s is the last number of all", PathOf(name));
  FileDescriptor file;
  if (!Fails("create")) {
    file = FileDescriptor(openat(directory_fd_.get(), name.c_str(),
                                 O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  }
  if (!file.is_open()) return Failed("make", PathOf(name));
  const std::string header = EncodeJournalHeader(header_);
  // Durable before anything follows it: a header that is not whole is then alone in its file.
  const absl::Status status = WriteDurably(file.get(), name, 0, header);
  if (!status.ok()) {
    unlinkat(directory_fd_.get(), name.c_str(), 0);
    return status;
  }
  file_ = std::move(file);
  number_ = number;
  size_ = header.size();
  has_begun_ = false;
  is_rolled_back_ = true;
  return absl::OkStatus();
}

absl::Status JournalFile::Begin(std::span<const JournalRecord> records) {
  BDN_RETURN_IF_ERROR(CheckRecords(records));
  if (has_begun_) {
    // A further generation would be newer than a successor's, and remove that.
    BDN_RETURN_IF_ERROR(CheckNewest());
    header_.predecessor = number_;
    BDN_RETURN_IF_ERROR(MakeGeneration());
  }
  if (!is_rolled_back_) BDN_RETURN_IF_ERROR(RollBack());
  const absl::Status status = WriteGeneration(records);
  if (!status.ok()) {
    (void)RollBack();  // the next call tries again
    return status;
  }
  has_begun_ = true;
  RemoveOlder();
  return absl::OkStatus();
}

absl::Status JournalFile::WriteGeneration(std::span<const JournalRecord> records) {
  const std::string name = NameOf(number_);
  const std::string bytes = EncodeAppend(records);
  const std::string mark = EncodeMark();
  if (bytes.size() + mark.size() > kMostGenerationBytes - size_) {
    return ResourceExhausted("a generation of the journal %s would have more than %d bytes",
                             directory_, kMostGenerationBytes);
  }
  BDN_RETURN_IF_ERROR(WriteDurably(file_.get(), name, size_, bytes));
  BDN_RETURN_IF_ERROR(WriteDurably(file_.get(), name, size_ + bytes.size(), mark));
  // The name, too, must be durable before the older generations go.
  BDN_RETURN_IF_ERROR(SyncDirectory());
  BDN_RETURN_IF_ERROR(CheckNewest());
  size_ += bytes.size() + mark.size();
  return absl::OkStatus();
}

absl::Status JournalFile::Append(uint8_t type, std::string payload) {
  const JournalRecord record{type, std::move(payload)};
  return AppendAll({&record, 1});
}

absl::Status JournalFile::AppendAll(std::span<const JournalRecord> records) {
  if (!has_begun_) {
    return FailedPrecondition("the journal %s has no generation of this scheduler yet", directory_);
  }
  BDN_RETURN_IF_ERROR(CheckRecords(records));
  const std::string bytes = EncodeAppend(records);
  if (bytes.size() > kMostGenerationBytes - size_) {
    return ResourceExhausted("%s would have more than %d bytes", PathOf(NameOf(number_)),
                             kMostGenerationBytes);
  }
  BDN_RETURN_IF_ERROR(CheckNewest());
  if (!is_rolled_back_) BDN_RETURN_IF_ERROR(RollBack());
  absl::Status status = WriteDurably(file_.get(), NameOf(number_), size_, bytes);
  // Once more, now that the records are durable: a successor that made its generation in between
  // may have read this one before they were.
  if (status.ok()) status = CheckNewest();
  if (!status.ok()) {
    (void)RollBack();  // the next call tries again
    return status;
  }
  size_ += bytes.size();
  return absl::OkStatus();
}

absl::Status JournalFile::CheckNewest() const {
  BDN_ASSIGN_OR_RETURN(const std::vector<uint64_t> numbers, ListGenerations());
  if (!numbers.empty() && numbers.front() == number_) return absl::OkStatus();
  if (!numbers.empty() && numbers.front() > number_) {
    return FailedPrecondition(
        "another scheduler has taken over the journal %s: %s is there, and this scheduler writes "
        "%s. This one must end, without a further word to its nodes",
        directory_, NameOf(numbers.front()), NameOf(number_));
  }
  return FailedPrecondition("%s was removed while the scheduler runs, which must end",
                            PathOf(NameOf(number_)));
}

absl::Status JournalFile::WriteDurably(int fd, const std::string& name, uint64_t offset,
                                       std::string_view bytes) const {
  while (!bytes.empty()) {
    const ssize_t size =
        Fails("pwrite") ? -1 : pwrite(fd, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (size < 0 && errno == EINTR) continue;
    if (size <= 0) return Failed("write", PathOf(name));
    offset += static_cast<uint64_t>(size);
    bytes.remove_prefix(static_cast<size_t>(size));
  }
  // The new length belongs to what fdatasync makes durable.
  if (Fails("fdatasync") || fdatasync(fd) != 0) return Failed("flush", PathOf(name));
  return absl::OkStatus();
}

absl::Status JournalFile::SyncDirectory() const {
  if (!Fails("fsync directory") && fsync(directory_fd_.get()) == 0) return absl::OkStatus();
  return Failed("flush the directory", directory_);
}

absl::Status JournalFile::RollBack() {
  is_rolled_back_ = false;
  if (Fails("ftruncate") || ftruncate(file_.get(), static_cast<off_t>(size_)) != 0 ||
      Fails("fdatasync") || fdatasync(file_.get()) != 0) {
    return Failed("take a failed append back from", PathOf(NameOf(number_)));
  }
  is_rolled_back_ = true;
  return absl::OkStatus();
}

void JournalFile::RemoveOlder() const {
  const absl::StatusOr<std::vector<uint64_t>> numbers = ListGenerations();
  if (!numbers.ok()) return;
  for (const uint64_t number : *numbers) {
    if (number < number_ && !Fails("unlink")) {
      unlinkat(directory_fd_.get(), NameOf(number).c_str(), 0);
    }
  }
  (void)SyncDirectory();
}

bool JournalFile::Fails(std::string_view call) const {
  if (!fault_) return false;
  errno = fault_(call);
  return errno != 0;
}

}  // namespace bdn
