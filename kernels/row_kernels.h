#ifndef BANDONEON_KERNELS_ROW_KERNELS_H_
#define BANDONEON_KERNELS_ROW_KERNELS_H_

#include <cstddef>

// The loops of the servers' rules of rows (server/rows/row_rule.h), over one row each, by the
// widest vectors that there are. Arrays are float32[n] and do not overlap. Each element goes
// through the operations written here, each rounded, so the bits are the same on every target. A
// step returns whether all elements that it leaves are finite; it is made either way.

namespace bdn {

// Sets x[i] <- factor * x[i], and returns whether all are finite then.
bool ScaleFinite(float factor, float* x, size_t n);

// The factors of a step of SGD or of Adagrad. The gradient is
//
//   g = mean                 decay = 0
//   g = mean + decay * x     else
struct GradientStep {
  float rate = 0;
  float decay = 0;
  float eps = 0;  // of Adagrad
};
// Takes the step x <- x - rate * g.
bool StepSgdRow(const GradientStep& step, const float* mean, size_t n, float* x);
// Takes the step v <- v + g^2, x <- x - rate * (g / (sqrt(v) + eps)).
bool StepAdagradRow(const GradientStep& step, const float* mean, size_t n, float* v, float* x);
// Does the same with one v for the row, to which the mean of g^2 is added: a sum in float64, in the
// order of the elements, divided in float64 and rounded.
bool StepRowwiseAdagradRow(const GradientStep& step, const float* mean, size_t n, float* v,
                           float* x);

// The factors of a step of Adam:
//
//   m <- m + (mean - m) * new1
//   v <- v + (mean^2 - v) * new2
//   x <- keep * x - rate * (m / (sqrt(v) + eps))
struct AdamRowStep {
  float new1 = 0;
  float new2 = 0;
  float keep = 1;
  float rate = 0;
  float eps = 0;
};
bool StepAdamRow(const AdamRowStep& step, const float* mean, size_t n, float* m, float* v,
                 float* x);

// The factors of a step of FTRL:
//
//   c' = c + mean^2
//   z <- z + (mean - ((sqrt(c') - sqrt(c)) / alpha) * x)
//   x <- 0                                                              |z| <= l1
//   x <- -(z - sign(z) l1) / ((beta + sqrt(c')) / alpha + l2)           else
struct FtrlRowStep {
  float alpha = 1;
  float beta = 0;
  float l1 = 0;
  float l2 = 0;
};
bool StepFtrlRow(const FtrlRowStep& step, const float* mean, size_t n, float* z, float* c,
                 float* x);

}  // namespace bdn

#endif  // BANDONEON_KERNELS_ROW_KERNELS_H_
