#include "common/transport/shm/shm_arena.h"

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <iterator>
#include <utility>

#include "common/base/log.h"
#include "common/transport/shm/shm_layout.h"

namespace bdn {
namespace {

constexpr size_t kAlignment = 64;
constexpr size_t kPage = 4096;
constexpr size_t kLeastSegment = size_t{32} << 20;
constexpr size_t kMostSegment = size_t{1} << 30;  // but for a block that is larger
// The more there is, the larger the next: so that a connection need not know of many.
constexpr size_t kGrowth = 8;
constexpr int kPopulateWrite = 23;  // MADV_POPULATE_WRITE, Linux 5.14

size_t RoundUp(size_t size, size_t to) { return (size + to - 1) / to * to; }

// Whoever gets the block is not to wait for its pages.
void Populate(std::byte* block, size_t size) {
  const auto address = reinterpret_cast<uintptr_t>(block);
  const uintptr_t begin = address / kPage * kPage;
  const uintptr_t end = RoundUp(address + size, kPage);
  // An older kernel lets them come when they are touched.
  (void)madvise(reinterpret_cast<void*>(begin), end - begin, kPopulateWrite);
}

}  // namespace

void ShmArena::Enable() {
  MutexLock lock(&mu_);
  is_enabled_ = true;
}

std::byte* ShmArena::Take(Segment* segment, size_t size) {
  for (auto range = segment->free.begin(); range != segment->free.end(); ++range) {
    const auto [offset, bytes] = *range;
    if (bytes < size) continue;
    segment->free.erase(range);
    if (bytes > size) segment->free[offset + size] = bytes - size;
    return segment->memory->data() + offset;
  }
  return nullptr;
}

std::byte* ShmArena::Allocate(size_t size) {
  size = RoundUp(size, kAlignment);
  std::byte* block = nullptr;
  {
    MutexLock lock(&mu_);
    if (!is_enabled_) return nullptr;
    for (Segment& segment : segments_) {
      block = Take(&segment, size);
      if (block != nullptr) break;
    }
    if (block == nullptr) {
      const size_t wanted = std::clamp(bytes_ / kGrowth, kLeastSegment, kMostSegment);
      const size_t bytes = RoundUp(std::max(wanted, size), kPage);
      if (segments_.size() == kMaxSegments || bytes > kMaxSegmentBytes) return nullptr;
      auto memory = SharedMemory::Create("bandoneon-payloads", bytes);
      if (!memory.ok()) {
        LogWarning("payloads are copied for peers on this host: %s", memory.status().message());
        is_enabled_ = false;
        return nullptr;
      }
      bytes_ += bytes;
      segments_.push_back({*std::move(memory), {{0, bytes}}});
      block = Take(&segments_.back(), size);
    }
  }
  Populate(block, size);
  return block;
}

const ShmArena::Segment* ShmArena::SegmentOf(const std::byte* data) const {
  for (const Segment& segment : segments_) {
    const std::byte* const begin = segment.memory->data();
    if (data >= begin && data < begin + segment.memory->size()) return &segment;
  }
  return nullptr;
}

void ShmArena::Free(std::byte* block, size_t size) {
  size = RoundUp(size, kAlignment);
  MutexLock lock(&mu_);
  auto& segment = const_cast<Segment&>(*SegmentOf(block));
  const size_t offset = block - segment.memory->data();
  auto range = segment.free.emplace(offset, size).first;
  const auto next = std::next(range);
  if (next != segment.free.end() && offset + size == next->first) {
    range->second += next->second;
    segment.free.erase(next);
  }
  if (range == segment.free.begin()) return;
  const auto before = std::prev(range);
  if (before->first + before->second != offset) return;
  before->second += range->second;
  segment.free.erase(range);
}

std::optional<ShmArena::Place> ShmArena::Find(ByteSpan bytes) const {
  MutexLock lock(&mu_);
  const Segment* const segment = SegmentOf(bytes.data());
  if (segment == nullptr) return std::nullopt;
  return Place{static_cast<uint32_t>(segment - segments_.data()),
               static_cast<uint64_t>(bytes.data() - segment->memory->data())};
}

std::shared_ptr<SharedMemory> ShmArena::segment(uint32_t index) const {
  MutexLock lock(&mu_);
  return index < segments_.size() ? segments_[index].memory : nullptr;
}

}  // namespace bdn
