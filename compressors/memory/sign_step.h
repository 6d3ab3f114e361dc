#ifndef BANDONEON_COMPRESSORS_MEMORY_SIGN_STEP_H_
#define BANDONEON_COMPRESSORS_MEMORY_SIGN_STEP_H_

#include <cstddef>

// The memory of a link that carries signs to whoever holds the same weights (the outer step of sign
// momentum, arXiv 2411.17866): both ends take
//
//   x <- (1 - decay * eta * lr) * x - (eta * lr) * s,   s in {-1, 0, +1}
//
// in float32, each operation rounded on its own, so that one bit an element says as much as the new
// weights would.

namespace bdn {

struct SignStep {
  float keep = 1.0f;  // 1 - decay * eta * lr
  float rate = 0.0f;  // eta * lr
};

SignStep MakeSignStep(double eta, double decay, float learning_rate);

// x and signs are float32[n]. (kernels/update_kernels.cc)
void ApplySigns(const SignStep& step, const float* signs, size_t n, float* x);

}  // namespace bdn

#endif  // BANDONEON_COMPRESSORS_MEMORY_SIGN_STEP_H_
