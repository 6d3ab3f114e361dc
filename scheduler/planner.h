#ifndef BANDONEON_SCHEDULER_PLANNER_H_
#define BANDONEON_SCHEDULER_PLANNER_H_

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "common/cluster/catalogue.h"
#include "common/cluster/control_plane.h"

namespace bdn {

// The most keys of a job; a declaration that would need more is refused.
inline constexpr uint64_t kMaxKeys = uint64_t{1} << 20;

// Returns the keys of one batch of new tensors, the first of which will be number `first_tensor` of
// the catalogue. The result depends on the list and the configuration alone, so that every run of
// the same model has the same partitions. The placer decides who owns them. Pure.
//
// A tensor of at least `fusion_bytes` is cut into even partitions of at most `partition_bytes`.
// Dense tensors below that which may be fused share a key with the next ones of like attributes, in
// the order of the list, up to `fusion_bytes`. Broadcasts are only cut. Tables of like attributes
// share keys, one for each bucket. A dense key under
// `min_compress_bytes` goes uncompressed. Keys come in rising order. Errors: InvalidArgument as
// CheckDeclaration; ResourceExhausted beyond kMaxKeys.
absl::StatusOr<std::vector<KeyEntry>> PlanKeys(std::span<const TensorDeclaration> tensors,
                                               uint32_t first_tensor, const JobConfig& config);

}  // namespace bdn

#endif  // BANDONEON_SCHEDULER_PLANNER_H_
