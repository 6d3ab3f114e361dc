#ifndef BANDONEON_COMPRESSORS_MEMORY_ERROR_FEEDBACK_H_
#define BANDONEON_COMPRESSORS_MEMORY_ERROR_FEEDBACK_H_

#include <cstddef>

#include "absl/status/status.h"
#include "common/base/bytes.h"
#include "compressors/compressor.h"

// Error feedback (Compressed communication with two-way error feedback, arXiv 1905.10936 and
// 2105.07829), optionally with momentum in front of it (dist-EF-SGDM):
//
//   m <- mu * m + a * g          (only with momentum)
//   p  = a * g + mu * m + rho * e       (without momentum: a * g + rho * e)
//   send Q(p);  e <- p - decode(Q(p))
//
// All arrays are float32[n] except g (any float type the codec supports). e and m are in unscaled
// units: a undoes the loss scale. Free functions: whoever owns the link owns the arrays.

namespace bdn {

struct FeedbackOptions {
  float scale = 1.0f;     // a
  float decay = 1.0f;     // rho; 1 unless the learning rate correction is asked for
  float momentum = 0.0f;  // mu
};

// Puts p into `residual` and advances `momentum` (null where mu is 0). InvalidArgument when an
// element of a * g or of p would not be finite; then nothing has changed. Two passes over g.
absl::Status Accumulate(ConstView g, const FeedbackOptions& options, float* residual,
                        float* momentum);

// Takes a step back after it was encoded but came to nothing: given the e that EncodeResidual left
// and d = decode(payload), restores e <- (e + d - a * g - mu * m) / rho and m <- (m - a * g) / mu,
// to rounding. `decoded` is float32[n]. REQUIRES: g, options as they were for Accumulate.
void Undo(ConstView g, const FeedbackOptions& options, const float* decoded, float* residual,
          float* momentum);

// Whether every scale * x[i] is finite. One pass. float64 too.
bool AllFinite(ConstView x, float scale);

}  // namespace bdn

#endif  // BANDONEON_COMPRESSORS_MEMORY_ERROR_FEEDBACK_H_
