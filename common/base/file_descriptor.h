#ifndef BANDONEON_COMMON_BASE_FILE_DESCRIPTOR_H_
#define BANDONEON_COMMON_BASE_FILE_DESCRIPTOR_H_

#include <unistd.h>

#include <utility>

namespace bdn {

// An owner of a file descriptor, which it closes when it is destroyed. Not thread-safe.
class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int fd) : fd_(fd) {}
  FileDescriptor(FileDescriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~FileDescriptor() {
    if (fd_ >= 0) close(fd_);
  }

  int get() const { return fd_; }
  bool is_open() const { return fd_ >= 0; }
  // Hands the descriptor over to the caller, which closes it.
  int Release() { return std::exchange(fd_, -1); }

 private:
  int fd_ = -1;
};

}  // namespace bdn

#endif  // BANDONEON_COMMON_BASE_FILE_DESCRIPTOR_H_
