#ifndef BANDONEON_KERNELS_UPDATE_KERNELS_H_
#define BANDONEON_KERNELS_UPDATE_KERNELS_H_

#include <cstddef>

// The elementwise loops of the servers' update rules (server/rules), and of workers that follow a
// rule by signs (compressors/memory/sign_step.h), by the widest vectors that there are. Arrays are
// float32[n] and do not overlap. Each element goes through the operations written here, each
// rounded, so the bits are the same on every target.

namespace bdn {

// The factors of a step with or without momentum:
//
//   g = scale * sum + decay * x
//   m <- momentum * m + g
//   x <- x - rate * (nesterov ? g + momentum * m : m)
//   x <- x - rate * g                                    without momentum (m null)
struct MomentumStep {
  float scale = 1;
  float decay = 0;
  float momentum = 0;
  bool nesterov = false;
  float rate = 1;
};
void StepWithMomentum(const MomentumStep& step, const float* sum, size_t n, float* m, float* x);

// The factors of a step of Adam:
//
//   g = scale * sum
//   m <- m + new1 * (g - m)
//   v <- old2 * v + new2 * g^2
//   x <- keep * x - rate * (m / (sqrt(v) / root + eps))
//
// where at update t, with learning rate lr, keep = 1 - lr * decay (so the decay is decoupled, as in
// AdamW), rate = lr / (1 - beta1^t) and root = sqrt(1 - beta2^t).
struct AdamStep {
  float scale = 1;
  float new1 = 0;
  float old2 = 0;
  float new2 = 0;
  float keep = 1;
  float rate = 0;
  float root = 1;
  float eps = 0;
};
void StepAdam(const AdamStep& step, const float* sum, size_t n, float* m, float* v, float* x);

// The factors of a step along signs.
struct SignStep {
  float keep = 1.0f;  // 1 - decay * eta * lr
  float rate = 0.0f;  // eta * lr
};
// Takes the step x <- keep * x - rate * signs.
void ApplySigns(const SignStep& step, const float* signs, size_t n, float* x);

// The factors of a step of sign momentum, which leaves the signs in `sum`:
//
//   d = scale * sum
//   sum <- sign(beta1 * m + new1 * d)      sign(0) = 0
//   m <- beta2 * m + new2 * d
//   x <- signs.keep * x - signs.rate * sum
struct SignMomentumStep {
  float scale = 1;
  float beta1 = 0;
  float new1 = 0;
  float beta2 = 0;
  float new2 = 0;
  SignStep signs;
};
void StepSignMomentum(const SignMomentumStep& step, size_t n, float* sum, float* m, float* x);

}  // namespace bdn

#endif  // BANDONEON_KERNELS_UPDATE_KERNELS_H_
