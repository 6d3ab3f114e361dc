#include "common/transport/fabric/fabric_arena.h"

#include <algorithm>
#include <utility>

#include "common/base/log.h"
#include "common/base/status.h"

namespace bdn {
namespace {

constexpr size_t kAlignment = 64;  // of all blocks, so that no two share a cache line
constexpr size_t kPage = 4096;
// The least size of a segment. To register memory is slow, and a card has room for few
// registrations, so one registration serves many blocks.
constexpr size_t kSegment = size_t{32} << 20;

size_t RoundUp(size_t size, size_t to) { return (size + to - 1) / to * to; }

}  // namespace

std::byte* FabricArena::Allocate(size_t size) {
  size = RoundUp(std::max<size_t>(size, 1), kAlignment);
  MutexLock lock(&mu_);
  for (Segment& segment : segments_) {
    const std::optional<size_t> offset = segment.free.Take(size);
    if (offset.has_value()) return segment.memory->data() + *offset;
  }
  Segment* const fresh = is_closed_ ? nullptr : AddSegment(size);
  return fresh == nullptr ? nullptr : fresh->memory->data() + *fresh->free.Take(size);
}

FabricArena::Segment* FabricArena::AddSegment(size_t size) {
  const size_t bytes = RoundUp(std::max(size, kSegment), kPage);
  absl::StatusOr<std::unique_ptr<FabricMemory>> memory = FabricMemory::Make(bytes, retired_);
  absl::StatusOr<std::unique_ptr<FabricRegion>> region =
      memory.ok() ? endpoint_->Register((*memory)->span(), /*peers_may_write=*/false)
                  : absl::StatusOr<std::unique_ptr<FabricRegion>>(memory.status());
  if (!region.ok()) {
    // Said once until it succeeds again: a limit that is reached is met by every frame.
    if (!has_said_) LogWarning("no memory to send from: %s", region.status().message());
    has_said_ = true;
    return nullptr;
  }
  has_said_ = false;
  return &segments_.emplace_back(
      Segment{*std::move(memory), *std::move(region), FreeRanges(bytes)});
}

const FabricArena::Segment* FabricArena::SegmentOf(const std::byte* data) const {
  for (const Segment& segment : segments_) {
    const MutableByteSpan all = segment.memory->span();
    if (data >= all.data() && data < all.data() + all.size()) return &segment;
  }
  return nullptr;
}

void FabricArena::Free(std::byte* block, size_t size) {
  MutexLock lock(&mu_);
  auto* const segment = const_cast<Segment*>(SegmentOf(block));
  segment->free.Give(static_cast<size_t>(block - segment->memory->data()),
                     RoundUp(std::max<size_t>(size, 1), kAlignment));
}

std::optional<FabricArena::Place> FabricArena::Find(ByteSpan bytes) const {
  MutexLock lock(&mu_);
  const Segment* const segment = SegmentOf(bytes.data());
  if (segment == nullptr || segment->region == nullptr) return std::nullopt;
  return Place{segment->region->descriptor()};
}

void FabricArena::Stop() {
  MutexLock lock(&mu_);
  is_closed_ = true;
}

void FabricArena::Close() {
  MutexLock lock(&mu_);
  is_closed_ = true;
  // The memory itself stays, because buffers that were allocated here may outlive the transport.
  for (Segment& segment : segments_) segment.region.reset();
}

}  // namespace bdn
