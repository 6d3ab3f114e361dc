#include "worker/link_states.h"

#include "common/base/status.h"

namespace bdn {
namespace {

absl::Status GetPart(const Tensor& tensor, StateCall* call) {
  if (call->link_part == LinkState::kLearningRate) {
    // All parts of a tensor are pushed together, with one learning rate.
    call->out[0] = tensor.parts[0].exchange->previous_learning_rate();
    return absl::OkStatus();
  }
  for (const TensorPart& part : tensor.parts) {
    BDN_RETURN_IF_ERROR(part.exchange->CopyState(call->link_part, part.segment,
                                                 call->out.subspan(part.offset, part.elements)));
  }
  return absl::OkStatus();
}

absl::Status SetPart(const Tensor& tensor, const StateCall& call) {
  for (const TensorPart& part : tensor.parts) {
    if (call.link_part == LinkState::kLearningRate) {
      part.exchange->set_previous_learning_rate(call.in[0]);
    } else {
      BDN_RETURN_IF_ERROR(part.exchange->SetState(call.link_part, part.segment,
                                                  call.in.subspan(part.offset, part.elements)));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status PerformAtLink(Tensor* tensor, StateCall* call) {
  switch (call->what) {
    case StateCall::What::kGet:
      return GetPart(*tensor, call);
    case StateCall::What::kSet:
      return SetPart(*tensor, *call);
    case StateCall::What::kGetStep:
      call->step = tensor->pushed;
      return absl::OkStatus();
    case StateCall::What::kSetStep:
      tensor->pushed = call->step;
      return absl::OkStatus();
    default:
      return Internal("no call about a link, of number %d", static_cast<int>(call->what));
  }
}

}  // namespace bdn
