#include "worker/push_check.h"

#include <cmath>
#include <string>

#include "common/base/status.h"
#include "worker/pipeline/chunked_payload.h"

namespace bdn {
namespace {

absl::Status CheckSources(const PushRequest& request, const TensorDeclaration& declared) {
  const auto bad = [&declared](const char* what) {
    return InvalidArgument("tensor '%s': %s", declared.name, what);
  };
  if (request.loss_scale != 1.0f) return bad("a sum of sources has a loss_scale of its own");
  // Either would be answered with a wrong sum: an empty sum that counts as a gradient, or gradients
  // that are dropped.
  if (request.sources->empty() != request.absent) {
    return bad("a sum has sources exactly where it is not absent");
  }
  for (const PushSource& source : *request.sources) {
    if (source.codec != nullptr) {
      if (source.payload.size() != ChunkedBytes(*source.codec, declared.elements)) {
        return bad("a source's payload is of another size");
      }
    } else if (source.data.data == nullptr) {
      return bad("a source is null");
    } else if (source.data.dtype != declared.dtype || source.data.n != declared.elements) {
      return bad("a source is of another type or size");
    }
    if (!std::isfinite(source.scale)) return bad("a source's scale is not finite");
  }
  return absl::OkStatus();
}

// Returns the type of the pushed data: a sum is float32, or float64 for a tensor of float64.
DType PushedDType(const PushRequest& request, const TensorDeclaration& declared) {
  const bool is_sum = request.sources != nullptr;
  return is_sum && declared.dtype != DType::kFloat64 ? DType::kFloat32 : declared.dtype;
}

}  // namespace

absl::Status KeepsLeftOut(const std::string& tensor) {
  return InvalidArgument(
      "tensor '%s': what is left out stays in the push's own memory; declare push without ef(...)",
      tensor);
}

void CompleteRequest(const TensorDeclaration& declared, PushRequest* request) {
  MutableView& data = request->data;
  if (data.data == nullptr || data.n > 0) return;
  data.dtype = PushedDType(*request, declared);
  data.n = declared.elements;
}

absl::Status CheckRequest(const PushRequest& request, const TensorDeclaration& declared) {
  const auto bad = [&declared](const std::string& what) {
    return InvalidArgument("tensor '%s': %s", declared.name, what);
  };
  if (request.data.data == nullptr && !request.absent) return bad("data is null");
  if (request.data.data != nullptr && request.data.dtype != PushedDType(request, declared)) {
    return bad(absl::StrFormat("declared as %s, pushed as %s", DTypeName(declared.dtype),
                               DTypeName(request.data.dtype)));
  }
  if (request.data.data != nullptr && request.data.n != declared.elements) {
    return bad(absl::StrFormat("declared with %d elements, pushed with %d", declared.elements,
                               request.data.n));
  }
  if (!std::isfinite(request.weight) || request.weight < 0) {
    return bad("weight is not finite and >= 0");
  }
  if (!std::isfinite(request.loss_scale) || request.loss_scale <= 0) {
    return bad("loss_scale is not finite and > 0");
  }
  // Both may be finite, and their quotient not.
  if (!std::isfinite(request.weight / request.loss_scale)) {
    return bad("weight / loss_scale overflows");
  }
  if (!std::isfinite(request.learning_rate)) return bad("learning_rate is not finite");
  return request.sources != nullptr ? CheckSources(request, declared) : absl::OkStatus();
}

absl::Status NotInYet(Rank rank) {
  return FailedPrecondition(
      "this worker is not in the job yet: it has joined a job that runs, as worker %d, and is "
      "taken in at the next boundary to which it comes",
      rank);
}

absl::Status InFlightAtBoundary(const std::string& tensor) {
  return FailedPrecondition("tensor '%s' is in flight; wait for it before the boundary", tensor);
}

absl::Status CheckPush(const PushRequest& request, const Tensor& tensor) {
  const TensorDeclaration& declared = tensor.declaration;
  BDN_RETURN_IF_ERROR(CheckRequest(request, declared));
  // The checks that need the keys come last, as they cost most.
  for (const TensorPart& part : tensor.parts) {
    if (part.exchange->has_server_request()) {
      return FailedPrecondition("tensor '%s': its state is being set or fetched; wait for that",
                                declared.name);
    }
    if (request.left_out != nullptr && part.exchange->key().has_memory()) {
      return KeepsLeftOut(declared.name);
    }
    BDN_RETURN_IF_ERROR(part.exchange->CheckFits(declared.name, tensor.pushed + 1, request));
  }
  return absl::OkStatus();
}

}  // namespace bdn
