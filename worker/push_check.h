#ifndef BANDONEON_WORKER_PUSH_CHECK_H_
#define BANDONEON_WORKER_PUSH_CHECK_H_

#include "absl/status/status.h"
#include "worker/client.h"
#include "worker/tensor_table.h"

namespace bdn {

// Says the type and size of the request's data where its caller left them to the declaration. No
// lock.
void CompleteRequest(const TensorDeclaration& declared, PushRequest* request);

// Whether a tensor may be pushed so now. InvalidArgument: the request does not fit its declaration,
// or others of its fused group. FailedPrecondition: its keys are busy. REQUIRES: the tensor table's
// lock.
absl::Status CheckPush(const PushRequest& request, const Tensor& tensor);

// As CheckPush, of the declaration alone. No lock.
absl::Status CheckRequest(const PushRequest& request, const TensorDeclaration& declared);
// What is said to who wants what is left out of a push that has a memory.
absl::Status KeepsLeftOut(const std::string& tensor);

}  // namespace bdn

#endif  // BANDONEON_WORKER_PUSH_CHECK_H_
