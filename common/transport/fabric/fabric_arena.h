#ifndef BANDONEON_COMMON_TRANSPORT_FABRIC_FABRIC_ARENA_H_
#define BANDONEON_COMMON_TRANSPORT_FABRIC_FABRIC_ARENA_H_

#include <memory>
#include <optional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "common/base/bytes.h"
#include "common/base/memory_domain.h"
#include "common/base/mutex.h"
#include "common/transport/fabric/fabric_endpoint.h"
#include "common/transport/fabric/fabric_memory.h"
#include "common/transport/free_ranges.h"

namespace bdn {

// Registered memory for payloads, for providers that send from registered memory alone. Segments
// are registered whole and kept, so that nothing is registered for a single frame. Thread-safe. A
// domain of a GPU's memory would be built the same way: it would pass its FabricDevice to Register
// and lend the same descriptors.
class FabricArena final : public MemoryDomain {
 public:
  // REQUIRES: `endpoint` lives until Close has returned.
  FabricArena(const FabricEndpoint* endpoint, std::shared_ptr<RetiredAddresses> retired)
      : endpoint_(endpoint), retired_(std::move(retired)) {}

  std::byte* Allocate(size_t size) override;
  void Free(std::byte* block, size_t size) override;

  // The provider's descriptor of the segment in which some bytes lie.
  struct Place {
    void* descriptor;
  };
  // Returns nothing where the bytes do not lie in this arena, or the arena is closed.
  std::optional<Place> Find(ByteSpan bytes) const;
  // Adds no more segments. Allocate then fails where no block is free.
  void Stop();
  // Stops, and ends all registrations: nothing can be sent from the arena any more. Its bytes can
  // still be read and written by this process.
  void Close();

 private:
  struct Segment {
    std::unique_ptr<FabricMemory> memory;
    std::unique_ptr<FabricRegion> region;
    FreeRanges free;
  };
  Segment* AddSegment(size_t size) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  const Segment* SegmentOf(const std::byte* data) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const FabricEndpoint* const endpoint_;
  const std::shared_ptr<RetiredAddresses> retired_;
  mutable Mutex mu_;
  std::vector<Segment> segments_ ABSL_GUARDED_BY(mu_);
  bool is_closed_ ABSL_GUARDED_BY(mu_) = false;
  bool has_said_ ABSL_GUARDED_BY(mu_) = false;  // the log has told that no memory can be had
};

}  // namespace bdn

#endif  // BANDONEON_COMMON_TRANSPORT_FABRIC_FABRIC_ARENA_H_
