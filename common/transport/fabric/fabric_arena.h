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

// Memory that the provider may send from: segments, registered whole and kept, so that nothing is
// registered for a frame. For providers that ask for it. Thread-safe. The device seam: a domain of a GPU's
// memory would give Register its FabricDevice, and lend the same descriptors.
class FabricArena final : public MemoryDomain {
 public:
  // REQUIRES: `endpoint` outlives Close.
  FabricArena(const FabricEndpoint* endpoint, std::shared_ptr<RetiredAddresses> retired)
      : endpoint_(endpoint), retired_(std::move(retired)) {}

  std::byte* Allocate(size_t size) override;
  void Free(std::byte* block, size_t size) override;

  struct Place {
    void* descriptor;
  };
  // Nothing where these bytes are of other memory.
  std::optional<Place> Find(ByteSpan bytes) const;
  // Nothing is allocated any more.
  void Stop();
  // Nothing can be sent from it any more either; what there is can still be read.
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
  bool has_said_ ABSL_GUARDED_BY(mu_) = false;  // that there is no memory
};

}  // namespace bdn

#endif  // BANDONEON_COMMON_TRANSPORT_FABRIC_FABRIC_ARENA_H_
