#ifndef BANDONEON_WORKER_PUSH_CHECK_H_
#define BANDONEON_WORKER_PUSH_CHECK_H_

#include "absl/status/status.h"
#include "worker/client.h"
#include "worker/tensor_table.h"

namespace bdn {

// Fills in the type and size of the request's data where its caller left them to the declaration.
// Needs no lock.
void CompleteRequest(const TensorDeclaration& declared, PushRequest* request);

// Checks whether a tensor may be pushed so now. InvalidArgument: the request does not fit its
// declaration, or other pushes of its fused group. FailedPrecondition: its keys are busy. REQUIRES:
// the tensor table's lock is held.
absl::Status CheckPush(const PushRequest& request, const Tensor& tensor);

// Checks the request against the declaration alone. Needs no lock.
absl::Status CheckRequest(const PushRequest& request, const TensorDeclaration& declared);
// Returns the error of a request with `left_out` where the push has a residual or momentum.
absl::Status KeepsLeftOut(const std::string& tensor);
// Returns the error of a candidate that pushes.
absl::Status NotInYet(Rank rank);
// Returns the error of a worker that comes to a boundary while it exchanges this tensor.
absl::Status InFlightAtBoundary(const std::string& tensor);

}  // namespace bdn

#endif  // BANDONEON_WORKER_PUSH_CHECK_H_
