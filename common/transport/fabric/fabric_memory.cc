#include "common/transport/fabric/fabric_memory.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "common/base/status.h"

namespace bdn {
namespace {

#ifndef MADV_POPULATE_WRITE
constexpr int MADV_POPULATE_WRITE = 23;
#endif
constexpr size_t kPage = 4096;

}  // namespace

RetiredAddresses::~RetiredAddresses() {
  for (const MutableByteSpan range : ranges_) munmap(range.data(), range.size());
}

void RetiredAddresses::Retire(MutableByteSpan bytes) {
  mmap(bytes.data(), bytes.size(), PROT_NONE,
       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  MutexLock lock(&mu_);
  ranges_.push_back(bytes);
}

absl::StatusOr<std::unique_ptr<FabricMemory>> FabricMemory::Make(
    size_t bytes, std::shared_ptr<RetiredAddresses> retired) {
  void* const block =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (block == MAP_FAILED) {
    return ResourceExhausted("memory for a fabric: %d bytes: %s", bytes, std::strerror(errno));
  }
  std::unique_ptr<FabricMemory> memory(
      new FabricMemory({static_cast<std::byte*>(block), bytes}, std::move(retired)));
  if (madvise(block, bytes, MADV_POPULATE_WRITE) == 0) return memory;
  if (errno == ENOMEM) {
    return ResourceExhausted("memory for a fabric: %d bytes are not there", bytes);
  }
  // A kernel before 5.14.
  for (size_t at = 0; at < bytes; at += kPage) memory->data()[at] = std::byte{0};
  return memory;
}

}  // namespace bdn
