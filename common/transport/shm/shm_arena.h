#ifndef BANDONEON_COMMON_TRANSPORT_SHM_SHM_ARENA_H_
#define BANDONEON_COMMON_TRANSPORT_SHM_SHM_ARENA_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "common/base/bytes.h"
#include "common/base/memory_domain.h"
#include "common/base/mutex.h"
#include "common/transport/free_ranges.h"
#include "common/transport/shm/shared_memory.h"
#include "common/transport/shm/shm_layout.h"

namespace bdn {

// Memory that peers on this host can read: segments, each a memfd, made as they are needed and kept.
// It is of payloads that are sent, which peers read where they are. It has no limit of its own: these
// payloads are there until they are answered wherever they lie. Thread-safe.
class ShmArena final : public MemoryDomain {
 public:
  struct Place {
    uint32_t segment;
    uint64_t offset;
  };

  // No segment is larger.
  explicit ShmArena(uint64_t max_segment_bytes = kMaxSegmentBytes)
      : max_segment_bytes_(max_segment_bytes) {}

  // It has none to give before it is enabled: a process without a peer on its host needs none.
  void Enable();

  std::byte* Allocate(size_t size) override;
  void Free(std::byte* block, size_t size) override;

  // Where these bytes lie; nothing if they are of other memory, or not aligned to kShmAlignment.
  std::optional<Place> Find(ByteSpan bytes) const;
  // Segment `index`; null if there is none yet.
  std::shared_ptr<SharedMemory> segment(uint32_t index) const;

 private:
  struct Segment {
    std::shared_ptr<SharedMemory> memory;
    FreeRanges free;
    size_t touched = 0;             // up to here its pages are there
  };
  // A block, and what of it has no pages yet.
  struct Taken {
    SharedMemory* memory = nullptr;  // null: there is none
    size_t offset = 0;
    size_t untouched = 0;  // its last so many bytes
  };
  static Taken Take(Segment* segment, size_t size);
  Taken TakeAnywhere(size_t size) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Null where there is none, or no more memory.
  Segment* AddSegment(size_t size) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  size_t IndexOf(const std::byte* data) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const uint64_t max_segment_bytes_;
  mutable Mutex mu_;
  bool is_enabled_ ABSL_GUARDED_BY(mu_) = false;
  size_t bytes_ ABSL_GUARDED_BY(mu_) = 0;
  std::vector<Segment> segments_ ABSL_GUARDED_BY(mu_);
  bool has_said_ ABSL_GUARDED_BY(mu_) = false;  // that there is no memory
};

// Blocks of `arena`, and of the heap while it has none: for pools, whose blocks may be of either.
std::shared_ptr<MemoryDomain> ArenaOrHeap(std::shared_ptr<ShmArena> arena);

}  // namespace bdn

#endif  // BANDONEON_COMMON_TRANSPORT_SHM_SHM_ARENA_H_
