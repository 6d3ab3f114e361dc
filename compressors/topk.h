#ifndef BANDONEON_COMPRESSORS_TOPK_H_
#define BANDONEON_COMPRESSORS_TOPK_H_

#include <cstddef>
#include <memory>

#include "compressors/compressor.h"

namespace bdn {

// `topk(ratio=R)`: the k elements of largest magnitude, exactly, the others 0. With p[i] = scale *
// x[i] in float32, elements are ordered by |p[i]|, falling, and where equal by i, rising; the first
//
//   k = min(n, max(1, ceil(R * n)))   (the product in float64), and 0 for n = 0
//
// are sent. Top-k sparsification with error feedback: arXiv 1809.07599.
//
// Payload, little-endian:
//   uint32  k
//   uint32  count[ceil(n / 65536)]   how many of the k lie in each block of 65536 elements
//   uint16  index[k]                 i mod 65536, rising within a block, blocks in order
//   zeros up to a multiple of 4 bytes
//   float32 value[k]                 p[i] in the same order; finite
//
// Decode writes +0 for what was not sent; DecodeAdd leaves it alone, and EncodeResidual leaves +0
// for what was.
//
// Passes over memory: Encode reads x twice (finite, selection) and a sample of it, and allocates 8
// bytes for each of at most 2k + 8192 candidates; data in which very many magnitudes are equal or
// nearly so takes three or four passes more. EncodeResidual reads once and writes k elements.
// Decode writes y once, DecodeAdd k elements.
//
// REQUIRES: 0 < ratio <= 1; n < 2^31 in every call.
struct TopKOptions {
  double ratio = 0;
};
std::shared_ptr<const Compressor> MakeTopK(const TopKOptions& options);

}  // namespace bdn

#endif  // BANDONEON_COMPRESSORS_TOPK_H_
