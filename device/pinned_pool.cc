#include "device/pinned_pool.h"

#include <algorithm>
#include <bit>

#include "common/base/status.h"

namespace bdn {
namespace {

constexpr size_t kLeastBlock = 4096;  // a page

}  // namespace

PinnedPool::~PinnedPool() {
  for (const auto& [size, blocks] : free_) {
    for (std::byte* const block : blocks) device_.FreePinned(block);
  }
}

absl::StatusOr<PinnedPool::Block> PinnedPool::Take(size_t bytes) {
  if (bytes > max_bytes_) {
    return ResourceExhausted("%d bytes of pinned memory wanted, the pool has %d", bytes,
                             max_bytes_);
  }
  // With powers of two there are few different sizes, so that most requests find a block of their
  // size.
  const size_t size = std::bit_ceil(std::max(bytes, kLeastBlock));
  MutexLock lock(&mu_);
  if (const auto found = free_.find(size); found != free_.end()) {
    std::byte* const block = found->second.back();
    found->second.pop_back();
    if (found->second.empty()) free_.erase(found);
    return Block(this, {block, size});
  }
  MakeRoom(size);
  if (held_bytes_ + size > max_bytes_) {
    return ResourceExhausted("%d bytes of pinned memory wanted, %d of the pool's %d are in use",
                             size, held_bytes_, max_bytes_);
  }
  // The lock is held while memory is pinned, so that the pool never passes its bound.
  BDN_ASSIGN_OR_RETURN(std::byte* const block, device_.AllocatePinned(size));
  held_bytes_ += size;
  return Block(this, {block, size});
}

size_t PinnedPool::held_bytes() const {
  MutexLock lock(&mu_);
  return held_bytes_;
}

void PinnedPool::GiveBack(MutableByteSpan bytes) {
  MutexLock lock(&mu_);
  free_[bytes.size()].push_back(bytes.data());
}

void PinnedPool::MakeRoom(size_t bytes) {
  // Freeing the largest blocks makes room with the fewest calls, each of which takes long.
  while (held_bytes_ + bytes > max_bytes_ && !free_.empty()) {
    const auto largest = std::prev(free_.end());
    device_.FreePinned(largest->second.back());
    held_bytes_ -= largest->first;
    largest->second.pop_back();
    if (largest->second.empty()) free_.erase(largest);
  }
}

}  // namespace bdn
