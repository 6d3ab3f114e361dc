#ifndef BANDONEON_WORKER_LINK_STATES_H_
#define BANDONEON_WORKER_LINK_STATES_H_

#include "absl/status/status.h"
#include "worker/state_call.h"
#include "worker/tensor_table.h"

namespace bdn {

// Makes a call about the state that this worker's end of the tensor's links keeps. It does not
// block, except for a device that holds the state. REQUIRES: the tensor table's lock is held, and
// CheckStateCall has passed the call.
absl::Status PerformAtLink(Tensor* tensor, StateCall* call);

}  // namespace bdn

#endif  // BANDONEON_WORKER_LINK_STATES_H_
