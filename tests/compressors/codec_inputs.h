#ifndef BANDONEON_TESTS_COMPRESSORS_CODEC_INPUTS_H_
#define BANDONEON_TESTS_COMPRESSORS_CODEC_INPUTS_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/dtype.h"
#include "compressors/codec.h"

// Arrays for the codecs' tests.

namespace bdn {

// The kinds of data a codec must take: "normal", "zeros", "equal", "subnormal", "signed_zeros",
// "largest", "few_values", "spread".
const std::vector<std::string>& DataKinds();
std::vector<float> MakeData(const std::string& kind, size_t n, uint64_t seed = 1);

// An array of any floating type, with its elements as float32.
class TypedArray {
 public:
  TypedArray(DType dtype, size_t n) : dtype_(dtype), n_(n), bytes_(n * DTypeSize(dtype)) {}
  // Rounds `values` to `dtype`.
  static TypedArray Of(DType dtype, const std::vector<float>& values);

  ConstView view() const { return {bytes_.data(), dtype_, n_}; }
  MutableView view() { return {bytes_.data(), dtype_, n_}; }
  void Set(size_t i, float value);
  float Get(size_t i) const;
  std::vector<float> ToFloat() const;
  bool operator==(const TypedArray& other) const = default;

 private:
  DType dtype_;
  size_t n_;
  std::vector<std::byte> bytes_;
};

// scale * x, each product rounded once.
std::vector<float> Times(float scale, const std::vector<float>& x);

// Whether two arrays have the same bits: -0 is not 0.
bool SameBits(const std::vector<float>& a, const std::vector<float>& b);

// The draw that the tests' encoders get.
const Draw& TestDraw();

// Payloads as the tests compare them. Check that encoding succeeds and that the size is within
// bounds.
std::vector<uint8_t> EncodeToVector(const Codec& codec, ConstView x, float scale = 1.0f);
std::vector<uint8_t> EncodeFeedbackToVector(const Codec& codec, const Feedback& feedback);
ByteSpan AsBytes(const std::vector<uint8_t>& payload);
std::vector<float> DecodeToVector(const Codec& codec, ByteSpan payload, size_t n,
                                  float scale = 1.0f);

}  // namespace bdn

#endif  // BANDONEON_TESTS_COMPRESSORS_CODEC_INPUTS_H_
