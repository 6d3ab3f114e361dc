#ifndef BANDONEON_COMPRESSORS_TOPK_H_
#define BANDONEON_COMPRESSORS_TOPK_H_

#include <cstddef>
#include <memory>

#include "compressors/codec.h"

namespace bdn {

// The value formats and options of topk. `topk(ratio=R)` sends the k elements of largest magnitude
// exactly; the others decode to 0. With p[i] = scale * x[i] in float32, elements are ordered by
// |p[i]|, falling, and where equal by i, rising; the first
//
//   k = min(n, max(1, ceil(R * n)))   (the product in float64), and 0 for n = 0
//
// are sent. Top-k sparsification with error feedback: arXiv 1809.07599.
//
// `select=sampled` sends about k (DGC, arXiv 1712.01887): every element of at least the magnitude
// that has rank max(1, floor(k * m / n)) among a sample of m; but where these are more than 2k, the
// exact k. The sample is the i with i mod P < 64, P = 4096 for n >= 2^19, 512 for n >= 2^15, else
// 64. `values=fp16` sends the values as halves, rounded to nearest even and at most 65504.
// `values=twobit` sends a sign and one of two magnitudes, as SparseLoCo's values have two bits
// (arXiv 2508.15706). Of each 64 values in the order they are sent in, with sums in float64 in that
// order:
//
//   large[i] = |p[i]| > the mean of |p| over the 64
//   high, low = bfloat16(float32(the mean of |p| over those that are large, and that are not)),
//               0 where there is none
//
// The payload is little-endian:
//   uint32  k                        how many are sent; if sampled, from 1 to min(n, 2k)
//   uint32  count[ceil(n / 65536)]   how many of them lie in each block of 65536 elements
//   uint16  index[k]                 i mod 65536, rising within a block, blocks in order
//   zeros up to a multiple of 4 bytes
//   float32 value[k]                 p[i] in the same order; finite. float16 with values=fp16
//   zeros up to a multiple of 4 bytes
// With values=twobit instead of these:
//   bfloat16 (low, high)[ceil(k / 64)]  finite, the sign bits clear
//   uint32   negative[ceil(k / 32)]     bit i % 32 of word i / 32 is 1 where the value is negative
//   uint32   large[ceil(k / 32)]        the same where its magnitude is the high one
// The bits past k in the last words are 0.
//
// Decode writes +0 for elements that were not sent; DecodeAdd leaves them alone. The residual of an
// element that was sent is p minus the sent value.
//
// Passes over memory: Encode reads x once, and a sample of it before; data in which very many
// magnitudes are equal or nearly so take four or five passes more. With a residual it reads x twice
// and the residual once. Decode writes y once, DecodeAdd k elements. Working memory: 12 bytes for
// each of 2k + 8192 elements.
//
// REQUIRES: 0 < ratio <= 1; n < 2^31 in every call.
enum class TopKValues { kFloat, kHalf, kTwoBit };
// The options of `topk`.
struct TopKOptions {
  double ratio = 0;
  bool sampled = false;
  TopKValues values = TopKValues::kFloat;
};
// Returns k, as it is without sampling.
size_t TopKCount(double ratio, size_t n);
std::shared_ptr<const Codec> MakeTopK(const TopKOptions& options);

}  // namespace bdn

#endif  // BANDONEON_COMPRESSORS_TOPK_H_
