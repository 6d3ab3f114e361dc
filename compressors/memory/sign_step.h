#ifndef BANDONEON_COMPRESSORS_MEMORY_SIGN_STEP_H_
#define BANDONEON_COMPRESSORS_MEMORY_SIGN_STEP_H_

#include "kernels/update_kernels.h"

// Sign steps, for a link that carries signs to nodes that hold the same weights (the outer step of
// sign momentum, arXiv 2411.17866). Both ends take
//
//   x <- (1 - decay * eta * lr) * x - (eta * lr) * s,   s in {-1, 0, +1}
//
// in float32, each operation rounded on its own, so that one bit an element says as much as the new
// weights would.

namespace bdn {

// Returns the step for ApplySigns.
SignStep MakeSignStep(double eta, double decay, float learning_rate);

}  // namespace bdn

#endif  // BANDONEON_COMPRESSORS_MEMORY_SIGN_STEP_H_
