#ifndef BANDONEON_WORKER_LINK_STATES_H_
#define BANDONEON_WORKER_LINK_STATES_H_

#include "absl/status/status.h"
#include "worker/state_call.h"
#include "worker/tensor_table.h"

namespace bdn {

// Makes a call about what this worker's end of the tensor's links remembers. It does not block.
// REQUIRES: the tensor table's lock, and that CheckStateCall has passed the call.
absl::Status PerformAtLink(Tensor* tensor, StateCall* call);

}  // namespace bdn

#endif  // BANDONEON_WORKER_LINK_STATES_H_
