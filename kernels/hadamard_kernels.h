#ifndef BANDONEON_KERNELS_HADAMARD_KERNELS_H_
#define BANDONEON_KERNELS_HADAMARD_KERNELS_H_

#include <cstddef>

// The Walsh-Hadamard transform H of blocks of 32 elements, as compressors/integer.h defines it.
// Arrays are float32[n], of any alignment.

namespace bdn {

// Sets to = H (factor * from) for whole blocks of 32; the rest is copied. `from` may be `to`.
void WalshHadamard(const float* from, size_t n, float factor, float* to);
// Sets y[i] <- ClampToFinite(y[i] - (H c)[i]) for whole blocks of 32; the rest becomes y - c.
void WalshHadamardAndSubtract(const float* c, size_t n, float* y);

}  // namespace bdn

#endif  // BANDONEON_KERNELS_HADAMARD_KERNELS_H_
