#ifndef BANDONEON_COMMON_TRANSPORT_SHM_SHARED_MEMORY_H_
#define BANDONEON_COMMON_TRANSPORT_SHM_SHARED_MEMORY_H_

#include <cstddef>
#include <memory>

#include "absl/status/statusor.h"
#include "common/base/file_descriptor.h"

namespace bdn {

// A memfd and its mapping. It has no name in the file system, and is freed with the last process
// that has it. It is sealed: it neither shrinks nor grows, so that a process that maps it can touch
// all of it, and where the kernel can (5.1 on) nobody but its maker can ever write to it.
// Thread-safe but for CloseDescriptor.
class SharedMemory {
 public:
  // Makes `bytes` of zeros to write to. `name` shows in /proc/PID/maps. ResourceExhausted: the
  // system has no more descriptors or memory.
  static absl::StatusOr<std::shared_ptr<SharedMemory>> Create(const char* name, size_t bytes);
  // Maps memory that a peer made, to read it. InvalidArgument: it is not a sealed memfd of so many
  // bytes. ResourceExhausted: the system cannot map so much.
  static absl::StatusOr<std::shared_ptr<SharedMemory>> MapPeers(FileDescriptor fd, size_t bytes);
  ~SharedMemory();
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  std::byte* data() const { return data_; }
  size_t size() const { return size_; }
  int fd() const { return fd_.get(); }  // of memory made here, to hand over
  // Makes the pages of these bytes present, so that no thread waits for them at its first touch.
  // Returns false where there is no memory for them. On kernels before 5.14 it does nothing, and
  // pages come when they are touched. REQUIRES: offset + bytes <= size().
  bool Populate(size_t offset, size_t bytes) const;
  // Closes the descriptor; the memory can then no longer be handed over.
  void CloseDescriptor() { fd_ = FileDescriptor(); }

 private:
  SharedMemory(FileDescriptor fd, std::byte* data, size_t size, bool is_writable)
      : fd_(std::move(fd)), data_(data), size_(size), is_writable_(is_writable) {}

  FileDescriptor fd_;
  std::byte* const data_;
  const size_t size_;
  const bool is_writable_;
};

}  // namespace bdn

#endif  // BANDONEON_COMMON_TRANSPORT_SHM_SHARED_MEMORY_H_
