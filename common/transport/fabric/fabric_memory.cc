#include "common/transport/fabric/fabric_memory.h"

#include <sys/mman.h>

#include <algorithm>
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
// The bytes whose pages are made by one call, a multiple of a page's size. The system holds this
// process's address space through such a call, so that every thread that allocates waits for it,
// and among them the one that sends heartbeats. 4 MiB take a millisecond.
constexpr size_t kStep = size_t{4} << 20;

// Makes the pages of these bytes. Returns false where the system lacks memory for them.
bool MakePages(MutableByteSpan bytes) {
  for (size_t at = 0; at < bytes.size(); at += kStep) {
    const MutableByteSpan step = bytes.subspan(at, std::min(kStep, bytes.size() - at));
    if (madvise(step.data(), step.size(), MADV_POPULATE_WRITE) == 0) continue;
    if (errno == ENOMEM) return false;
    // Kernels before 5.14 do not know that advice: each page is touched instead.
    for (size_t page = 0; page < step.size(); page += kPage) step[page] = std::byte{0};
  }
  return true;
}

}  // namespace

RetiredAddresses::~RetiredAddresses() {
  for (const MutableByteSpan range : ranges_) munmap(range.data(), range.size());
}

void RetiredAddresses::Retire(MutableByteSpan bytes) {
  // The range is mapped over and not unmapped: the system would soon give unmapped addresses to
  // others, and a late write of the provider would damage their memory. Where the system refuses
  // that, the range stays as it is, which is as good.
  (void)mmap(bytes.data(), bytes.size(), PROT_NONE,
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
  // All pages are made now, so that a lack of memory is an error here and not the end of the
  // process at the first write, which may be a peer's.
  if (!MakePages(memory->span())) {
    return ResourceExhausted("memory for a fabric: %d bytes are not there", bytes);
  }
  return memory;
}

}  // namespace bdn
