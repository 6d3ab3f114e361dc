#ifndef BANDONEON_KERNELS_INTEGER_KERNELS_H_
#define BANDONEON_KERNELS_INTEGER_KERNELS_H_

#include <cstddef>
#include <cstdint>

#include "common/base/draw.h"

// The loops of compressors/integer.h, which has the mathematics and the layout of the codes. Arrays
// are of any alignment; `at` is the index of the first element in the whole array, a multiple of
// 32.

namespace bdn {

// The two factors of a group: to the codes and back.
struct IntegerScale {
  float inverse = 0;  // L / m
  float scale = 0;    // s
};

// The options of compressors/integer.h that the loops need.
struct IntegerCoding {
  int bits = 8;
  bool nearest = false;
  size_t group = 128;
};

// Sets magnitudes[g] to the bits of the largest |c| of group g, which are 0x7f800000 or more where
// a c is not finite. c begins with a group.
void GroupMagnitudes(const float* c, size_t n, size_t group, uint32_t* magnitudes);

// The fate of the float32 array beside the codes.
enum class AfterQuantize {
  kKeep,
  kSubtract,  // c <- c - decoded
  kReplace    // c <- decoded
};

// Writes the codes of c[0, n). scales[0] belongs to the group of element `at`, and `codes` begins
// with the code of element `at`. c is written only where `after` is not kKeep.
void QuantizeGroups(const IntegerCoding& coding, const Draw& draw, size_t at, size_t n,
                    const IntegerScale* scales, float* c, AfterQuantize after, void* codes);

// DequantizeGroups sets y[i] = scale * (q[at + i] * s), and DequantizeGroupsAndAdd adds that.
// `scales` and `codes` are those of the whole payload.
void DequantizeGroups(const IntegerCoding& coding, const void* scales, const void* codes, size_t at,
                      size_t n, float scale, float* y);
void DequantizeGroupsAndAdd(const IntegerCoding& coding, const void* scales, const void* codes,
                            size_t at, size_t n, float scale, float* y);

// Returns whether no code in `bytes` whole bytes is -2^(bits - 1).
bool CodesAreValid(int bits, const void* codes, size_t bytes);

}  // namespace bdn

#endif  // BANDONEON_KERNELS_INTEGER_KERNELS_H_
