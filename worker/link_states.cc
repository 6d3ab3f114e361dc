#include "worker/link_states.h"

#include <algorithm>
#include <cmath>

#include "common/base/status.h"

namespace bdn {
absl::Status CheckElements(const TensorDeclaration& tensor, size_t elements) {
  if (elements == tensor.elements) return absl::OkStatus();
  return InvalidArgument("tensor '%s' has %d elements, not %d", tensor.name, tensor.elements,
                         elements);
}

absl::Status CheckStateSize(const TensorDeclaration& tensor, LinkState what, size_t elements) {
  if (what != LinkState::kLearningRate) return CheckElements(tensor, elements);
  if (elements == 1) return absl::OkStatus();
  return InvalidArgument("tensor '%s' has 1 learning rate, not %d", tensor.name, elements);
}

absl::Status GetLinkState(TensorTable* tensors, uint32_t id, LinkState what, std::span<float> out) {
  MutexLock lock(tensors->mutex());
  BDN_ASSIGN_OR_RETURN(const Tensor* tensor, tensors->FindIdle(id));
  BDN_RETURN_IF_ERROR(CheckStateSize(tensor->declaration, what, out.size()));
  if (what == LinkState::kLearningRate) {
    out[0] = tensor->parts[0].exchange->previous_learning_rate();
    return absl::OkStatus();
  }
  for (const TensorPart& part : tensor->parts) {
    BDN_RETURN_IF_ERROR(
        part.exchange->CopyState(what, part.segment, out.subspan(part.offset, part.elements)));
  }
  return absl::OkStatus();
}

absl::Status SetLinkState(TensorTable* tensors, uint32_t id, LinkState what,
                          std::span<const float> in) {
  MutexLock lock(tensors->mutex());
  BDN_ASSIGN_OR_RETURN(const Tensor* tensor, tensors->FindIdle(id));
  BDN_RETURN_IF_ERROR(CheckStateSize(tensor->declaration, what, in.size()));
  if (!std::all_of(in.begin(), in.end(), [](float x) { return std::isfinite(x); })) {
    return InvalidArgument("tensor '%s': a state that is not finite", tensor->declaration.name);
  }
  for (const TensorPart& part : tensor->parts) {
    if (what == LinkState::kLearningRate) {
      part.exchange->set_previous_learning_rate(in[0]);
    } else {
      BDN_RETURN_IF_ERROR(
          part.exchange->SetState(what, part.segment, in.subspan(part.offset, part.elements)));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<Step> GetLinkStep(TensorTable* tensors, uint32_t id) {
  MutexLock lock(tensors->mutex());
  BDN_ASSIGN_OR_RETURN(const Tensor* tensor, tensors->FindDense(id));
  return tensor->pushed;
}

absl::Status SetLinkStep(TensorTable* tensors, uint32_t id, Step step) {
  MutexLock lock(tensors->mutex());
  BDN_ASSIGN_OR_RETURN(Tensor * tensor, tensors->FindIdle(id));
  if (step > kMaxStep) return InvalidArgument("step %d is over %d", step, kMaxStep);
  if (step < tensor->pushed) {
    return InvalidArgument("tensor '%s' is at step %d, past step %d: start a new job to go back",
                           tensor->declaration.name, tensor->pushed, step);
  }
  tensor->pushed = step;
  return absl::OkStatus();
}

}  // namespace bdn
