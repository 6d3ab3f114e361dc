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

// Memory that peers on this machine can read: segments, each a memfd, made as they are needed and
// kept. It holds payloads to be sent, which peers read in place. It has no limit of its own: these
// payloads exist until they are answered, in whatever memory they are. Thread-safe.
class ShmArena final : public MemoryDomain {
 public:
  // The position of a block in the arena.
  struct Place {
    uint32_t segment;
    uint64_t offset;
  };

  // Makes an arena of which no segment is larger than this.
  explicit ShmArena(uint64_t max_segment_bytes = kMaxSegmentBytes)
      : max_segment_bytes_(max_segment_bytes) {}

  // Lets Allocate give memory; before that it gives none, as a process without a peer on its
  // machine needs none.
  void Enable();

  std::byte* Allocate(size_t size) override;
  void Free(std::byte* block, size_t size) override;

  // Returns the position of these bytes; nothing if they are in other memory, or not aligned to
  // kShmAlignment.
  std::optional<Place> Find(ByteSpan bytes) const;
  // Returns segment `index`; null if there is none yet.
  std::shared_ptr<SharedMemory> segment(uint32_t index) const;

 private:
  struct Segment {
    std::shared_ptr<SharedMemory> memory;
    FreeRanges free;
    size_t touched = 0;  // its pages up to here are present
  };
  // A block, and its part that has no pages yet.
  struct Taken {
    SharedMemory* memory = nullptr;  // null where there is no room
    size_t offset = 0;
    size_t untouched = 0;  // so many bytes at its end
  };
  static Taken Take(Segment* segment, size_t size);
  Taken TakeAnywhere(size_t size) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Makes a segment for a block of `size`. Returns null where the arena has as many as it may, the
  // block is too large, or the system has no more memory.
  Segment* AddSegment(size_t size) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  size_t IndexOf(const std::byte* data) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const uint64_t max_segment_bytes_;
  mutable Mutex mu_;
  bool is_enabled_ ABSL_GUARDED_BY(mu_) = false;
  size_t bytes_ ABSL_GUARDED_BY(mu_) = 0;
  std::vector<Segment> segments_ ABSL_GUARDED_BY(mu_);
  // Whether the log says already that there is no memory.
  bool has_said_ ABSL_GUARDED_BY(mu_) = false;
};

// Returns a domain that takes blocks of `arena`, or of the heap where the arena gives none. It is
// for pools, whose blocks may be of either.
std::shared_ptr<MemoryDomain> ArenaOrHeap(std::shared_ptr<ShmArena> arena);

}  // namespace bdn

#endif  // BANDONEON_COMMON_TRANSPORT_SHM_SHM_ARENA_H_
