#include "common/transport/shm/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "common/base/status.h"

namespace bdn {
namespace {

// Constants of kernels that may be younger than the C library's headers.
constexpr unsigned kNoExecSeal = 0x0008;  // MFD_NOEXEC_SEAL, 6.3
constexpr int kSealFutureWrite = 0x0010;  // F_SEAL_FUTURE_WRITE, 5.1
constexpr int kPopulateRead = 22;         // MADV_POPULATE_READ, 5.14
constexpr int kPopulateWrite = 23;
constexpr size_t kPage = 4096;
constexpr int kSizeSeals = F_SEAL_SHRINK | F_SEAL_GROW;

FileDescriptor OpenMemfd(const char* name) {
  constexpr unsigned kFlags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
  FileDescriptor fd(memfd_create(name, kFlags | kNoExecSeal));
  // A kernel that does not know MFD_NOEXEC_SEAL says EINVAL.
  if (fd.is_open() || errno != EINVAL) return fd;
  return FileDescriptor(memfd_create(name, kFlags));
}

bool Seal(int fd) {
  // The second call is for kernels without F_SEAL_FUTURE_WRITE.
  return fcntl(fd, F_ADD_SEALS, kSizeSeals | kSealFutureWrite | F_SEAL_SEAL) == 0 ||
         fcntl(fd, F_ADD_SEALS, kSizeSeals | F_SEAL_SEAL) == 0;
}

}  // namespace

absl::StatusOr<std::shared_ptr<SharedMemory>> SharedMemory::Create(const char* name, size_t bytes) {
  const auto failed = [bytes](const char* call) {
    return ResourceExhausted("%d bytes of shared memory: %s: %s", bytes, call,
                             std::strerror(errno));
  };
  FileDescriptor fd = OpenMemfd(name);
  if (!fd.is_open()) return failed("memfd_create");
  if (ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) return failed("ftruncate");
  // Mapped before it is sealed: F_SEAL_FUTURE_WRITE forbids every writable mapping that comes
  // later.
  void* const data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (data == MAP_FAILED) return failed("mmap");
  std::shared_ptr<SharedMemory> memory(
      new SharedMemory(std::move(fd), static_cast<std::byte*>(data), bytes, /*is_writable=*/true));
  if (!Seal(memory->fd())) return failed("F_ADD_SEALS");
  return memory;
}

absl::StatusOr<std::shared_ptr<SharedMemory>> SharedMemory::MapPeers(FileDescriptor fd,
                                                                     size_t bytes) {
  // Seals first: without them a peer could change the size after the look at it, and touching the
  // pages beyond the end would kill this process.
  const int seals = fcntl(fd.get(), F_GET_SEALS);
  if (seals < 0 || (seals & kSizeSeals) != kSizeSeals) {
    return InvalidArgument("shared memory that a peer could take back");
  }
  struct stat file = {};
  if (fstat(fd.get(), &file) != 0 || file.st_size != static_cast<off_t>(bytes)) {
    return InvalidArgument("shared memory of %d bytes, not %d", file.st_size, bytes);
  }
  void* const data = mmap(nullptr, bytes, PROT_READ, MAP_SHARED, fd.get(), 0);
  if (data == MAP_FAILED) {
    return ResourceExhausted("a peer's %d bytes of shared memory: mmap: %s", bytes,
                             std::strerror(errno));
  }
  // The mapping stays without the descriptor.
  return std::shared_ptr<SharedMemory>(new SharedMemory(
      FileDescriptor(), static_cast<std::byte*>(data), bytes, /*is_writable=*/false));
}

bool SharedMemory::Populate(size_t offset, size_t bytes) const {
  if (bytes == 0) return true;
  const size_t begin = offset / kPage * kPage;  // madvise takes whole pages
  // EINVAL: the kernel does not know the advice, and pages come when they are touched.
  return madvise(data_ + begin, offset + bytes - begin,
                 is_writable_ ? kPopulateWrite : kPopulateRead) == 0 ||
         errno == EINVAL;
}

SharedMemory::~SharedMemory() { munmap(data_, size_); }

}  // namespace bdn
