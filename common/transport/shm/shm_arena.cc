#include "common/transport/shm/shm_arena.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "common/base/log.h"
#include "common/base/memory_reserve.h"

namespace bdn {
namespace {

constexpr size_t kAlignment = 64;
constexpr size_t kPage = 4096;
constexpr size_t kLeastSegment = size_t{32} << 20;
constexpr size_t kMostSegment = size_t{1} << 30;  // unless a block is larger
// The next segment is an eighth of all so far: a connection then need not know of many.
constexpr size_t kGrowth = 8;

size_t RoundUp(size_t size, size_t to) { return (size + to - 1) / to * to; }

}  // namespace

void ShmArena::Enable() {
  MutexLock lock(&mu_);
  is_enabled_ = true;
}

ShmArena::Taken ShmArena::Take(Segment* segment, size_t size) {
  const std::optional<size_t> offset = segment->free.Take(size);
  if (!offset.has_value()) return {};
  const size_t end = *offset + size;
  // Blocks come from the first range that is long enough, so the pages below the highest block so
  // far are those that were asked for before.
  const size_t untouched = std::min(size, end - std::min(end, segment->touched));
  segment->touched = std::max(segment->touched, end);
  return {segment->memory.get(), *offset, untouched};
}

ShmArena::Taken ShmArena::TakeAnywhere(size_t size) {
  if (!is_enabled_) return {};
  for (Segment& segment : segments_) {
    const Taken taken = Take(&segment, size);
    if (taken.memory != nullptr) return taken;
  }
  Segment* const fresh = AddSegment(size);
  return fresh == nullptr ? Taken() : Take(fresh, size);
}

ShmArena::Segment* ShmArena::AddSegment(size_t size) {
  const size_t wanted = std::clamp(bytes_ / kGrowth, kLeastSegment, kMostSegment);
  size_t bytes = RoundUp(std::max(wanted, size), kPage);
  if (segments_.size() == kMaxSegments || bytes > max_segment_bytes_) return nullptr;
  auto memory = SharedMemory::Create("bandoneon-payloads", bytes);
  // Near a limit of the system, a smaller one may do.
  if (!memory.ok() && bytes > RoundUp(size, kPage)) {
    bytes = RoundUp(size, kPage);
    memory = SharedMemory::Create("bandoneon-payloads", bytes);
  }
  if (!memory.ok()) {
    MemoryReserve::OnAsked(false);
    if (!has_said_) {
      LogWarning("payloads wait for memory to share: %s", memory.status().message());
    }
    has_said_ = true;
    return nullptr;
  }
  has_said_ = false;
  bytes_ += bytes;
  return &segments_.emplace_back(Segment{*std::move(memory), FreeRanges(bytes)});
}

std::byte* ShmArena::Allocate(size_t size) {
  size = RoundUp(size, kAlignment);
  Taken taken;
  {
    MutexLock lock(&mu_);
    taken = TakeAnywhere(size);
  }
  if (taken.memory == nullptr) return nullptr;
  // Without the lock: pages take long, and the block is ours already.
  std::byte* const block = taken.memory->data() + taken.offset;
  const size_t end = taken.offset + size;
  if (taken.memory->Populate(end - taken.untouched, taken.untouched)) {
    MemoryReserve::OnAsked(true);
    return block;
  }
  MemoryReserve::OnAsked(false);
  {
    // Before the block is free: whoever has it next must ask for these pages again.
    MutexLock lock(&mu_);
    Segment& segment = segments_[IndexOf(block)];
    segment.touched = std::min(segment.touched, end - taken.untouched);
  }
  Free(block, size);
  return nullptr;
}

// Returns the index of the segment that has `data`; segments_.size() where none has.
size_t ShmArena::IndexOf(const std::byte* data) const {
  for (size_t i = 0; i < segments_.size(); ++i) {
    const std::byte* const begin = segments_[i].memory->data();
    if (data >= begin && data < begin + segments_[i].memory->size()) return i;
  }
  return segments_.size();
}

void ShmArena::Free(std::byte* block, size_t size) {
  size = RoundUp(size, kAlignment);
  MutexLock lock(&mu_);
  Segment& segment = segments_[IndexOf(block)];
  segment.free.Give(block - segment.memory->data(), size);
}

std::optional<ShmArena::Place> ShmArena::Find(ByteSpan bytes) const {
  if (reinterpret_cast<uintptr_t>(bytes.data()) % kShmAlignment != 0) return std::nullopt;
  MutexLock lock(&mu_);
  const size_t index = IndexOf(bytes.data());
  if (index == segments_.size()) return std::nullopt;
  return Place{static_cast<uint32_t>(index),
               static_cast<uint64_t>(bytes.data() - segments_[index].memory->data())};
}

std::shared_ptr<SharedMemory> ShmArena::segment(uint32_t index) const {
  MutexLock lock(&mu_);
  return index < segments_.size() ? segments_[index].memory : nullptr;
}

namespace {

class ArenaOrHeapDomain final : public MemoryDomain {
 public:
  explicit ArenaOrHeapDomain(std::shared_ptr<ShmArena> arena) : arena_(std::move(arena)) {}

  std::byte* Allocate(size_t size) override {
    std::byte* const block = arena_->Allocate(size);
    return block != nullptr ? block : heap_->Allocate(size);
  }
  void Free(std::byte* block, size_t size) override {
    const bool is_shared = arena_->Find({block, 1}).has_value();
    is_shared ? arena_->Free(block, size) : heap_->Free(block, size);
  }

 private:
  const std::shared_ptr<ShmArena> arena_;
  const std::shared_ptr<MemoryDomain> heap_ = HostMemory();
};

}  // namespace

std::shared_ptr<MemoryDomain> ArenaOrHeap(std::shared_ptr<ShmArena> arena) {
  return std::make_shared<ArenaOrHeapDomain>(std::move(arena));
}

}  // namespace bdn
