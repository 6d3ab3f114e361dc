#include "compressors/memory/error_feedback.h"

#include <cmath>

#include "common/base/status.h"
#include "compressors/kernels/float_kernels.h"
#include "compressors/payload.h"

namespace bdn {
namespace {

// Momentum of 0 leaves the array alone, so that it may be null.
AccumulateArgs Args(ConstView g, const FeedbackOptions& options, float* residual, float* momentum) {
  return {.g = g,
          .scale = options.scale,
          .decay = options.decay,
          .mu = options.momentum,
          .residual = residual,
          .momentum = options.momentum == 0.0f ? nullptr : momentum};
}

AccumulateArgs Element(const AccumulateArgs& args, size_t i) {
  AccumulateArgs one = args;
  one.g = args.g.Sub(i, 1);
  one.residual = args.residual + i;
  if (args.momentum != nullptr) one.momentum = args.momentum + i;
  return one;
}

absl::Status NameCulprit(const AccumulateArgs& args) {
  BDN_RETURN_IF_ERROR(CheckFinite(args.g, args.scale));
  size_t i = 0;
  while (AccumulateIsFinite(Element(args, i))) ++i;
  return InvalidArgument("element %d is not finite once its memory is added", i);
}

}  // namespace

absl::Status Accumulate(ConstView g, const FeedbackOptions& options, float* residual,
                        float* momentum) {
  const AccumulateArgs args = Args(g, options, residual, momentum);
  if (!AccumulateIsFinite(args)) return NameCulprit(args);
  AccumulateApply(args);
  return absl::OkStatus();
}

void Undo(ConstView g, const FeedbackOptions& options, const float* decoded, float* residual,
          float* momentum) {
  AccumulateUndo(Args(g, options, residual, momentum), decoded);
}

bool AllFinite(ConstView x, float scale) { return FirstNonFinite(x, scale) == x.n; }

}  // namespace bdn
