#include "common/certs/small_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "common/base/status.h"

namespace bdn {
namespace {

absl::Status Failed(const char* what, const std::string& path) {
  return InvalidArgument("cannot %s %s: %s", what, path, std::strerror(errno));
}

bool WriteAll(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t size = write(fd, text.data(), text.size());
    if (size < 0 && errno == EINTR) continue;
    if (size <= 0) return false;
    text.remove_prefix(static_cast<size_t>(size));
  }
  return true;
}

}  // namespace

absl::StatusOr<std::string> ReadSmallFile(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return Failed("read", path);
  // One byte more than allowed, so that a file that is too long is told from one of exactly the
  // limit.
  std::string text(kMostFileBytes + 1, '\0');
  size_t used = 0;
  ssize_t size = 0;
  while (used < text.size() &&
         ((size = read(fd, text.data() + used, text.size() - used)) > 0 || errno == EINTR)) {
    if (size > 0) used += static_cast<size_t>(size);
    if (size == 0) break;
  }
  const absl::Status failed = size < 0 ? Failed("read", path) : absl::OkStatus();
  close(fd);
  BDN_RETURN_IF_ERROR(failed);
  if (used > kMostFileBytes) {
    return InvalidArgument("%s has more than %d bytes", path, kMostFileBytes);
  }
  text.resize(used);
  return text;
}

absl::Status MakePrivateDirectory(const std::string& path) {
  if (mkdir(path.c_str(), 0700) == 0 || errno == EEXIST) return absl::OkStatus();
  return Failed("make the directory", path);
}

absl::Status WritePrivateFile(const std::string& path, const std::string& text) {
  std::string temporary = path + ".XXXXXX";
  const int fd = mkostemp(temporary.data(), O_CLOEXEC);  // makes it with mode 0600
  if (fd < 0) return Failed("write", path);
  // fsync before the rename: after a crash the name must not lead to a file without its content.
  const bool written = WriteAll(fd, text) && fsync(fd) == 0;
  if (close(fd) != 0 || !written || std::rename(temporary.c_str(), path.c_str()) != 0) {
    const absl::Status failed = Failed("write", path);
    unlink(temporary.c_str());
    return failed;
  }
  return absl::OkStatus();
}

}  // namespace bdn
