#ifndef BANDONEON_WORKER_LINK_STATES_H_
#define BANDONEON_WORKER_LINK_STATES_H_

#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/client.h"
#include "worker/tensor_table.h"

// What this worker's end of a tensor's links remembers, tensor by tensor, as Client has it. Each
// takes the tensor table's lock.

namespace bdn {

// InvalidArgument: an array of so many elements is none of the tensor's, or of such a state of it.
absl::Status CheckElements(const TensorDeclaration& tensor, size_t elements);
absl::Status CheckStateSize(const TensorDeclaration& tensor, LinkState what, size_t elements);

absl::Status GetLinkState(TensorTable* tensors, uint32_t id, LinkState what, std::span<float> out);
absl::Status SetLinkState(TensorTable* tensors, uint32_t id, LinkState what,
                          std::span<const float> in);
absl::StatusOr<Step> GetLinkStep(TensorTable* tensors, uint32_t id);
absl::Status SetLinkStep(TensorTable* tensors, uint32_t id, Step step);

}  // namespace bdn

#endif  // BANDONEON_WORKER_LINK_STATES_H_
