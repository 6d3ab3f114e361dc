#include "tests/compressors/codec_inputs.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "gtest/gtest.h"

namespace bdn {

const std::vector<std::string>& DataKinds() {
  static const std::vector<std::string> kinds = {
      "normal", "zeros", "equal", "subnormal", "signed_zeros", "largest", "few_values", "spread"};
  return kinds;
}

std::vector<float> MakeData(const std::string& kind, size_t n, uint64_t seed) {
  constexpr float kLargest = std::numeric_limits<float>::max();
  std::mt19937_64 random(seed * 1000003 + n);
  // From -1 to 1. Not a std::normal_distribution: its numbers differ between libraries, and golden
  // bytes need them. For the same reason every number has a statement of its own.
  const auto uniform = [&] {
    return static_cast<float>(static_cast<int>(random() >> 41) - (1 << 22)) * 0x1p-22f;
  };
  std::vector<float> x(n);
  for (float& value : x) {
    const float a = uniform();
    const float b = uniform();
    const auto exponent = static_cast<int>(random() % 60) - 30;
    if (kind == "normal") value = a + b;
    if (kind == "equal") value = -0.375f;
    if (kind == "subnormal") value = a * 0x1p-127f;
    if (kind == "signed_zeros") value = a < 0 ? -0.0f : 0.0f;
    if (kind == "largest") value = a < 0 ? -kLargest : kLargest;
    if (kind == "few_values") value = std::round(a * 2);
    if (kind == "spread") value = std::ldexp(a, exponent);
  }
  return x;
}

TypedArray TypedArray::Of(DType dtype, const std::vector<float>& values) {
  TypedArray array(dtype, values.size());
  for (size_t i = 0; i < values.size(); ++i) array.Set(i, values[i]);
  return array;
}

void TypedArray::Set(size_t i, float value) {
  std::byte* at = bytes_.data() + i * DTypeSize(dtype_);
  const double wide = value;
  const uint16_t half = dtype_ == DType::kFloat16 ? FloatToHalf(value) : FloatToBFloat16(value);
  if (dtype_ == DType::kFloat32) std::memcpy(at, &value, sizeof(value));
  if (dtype_ == DType::kFloat64) std::memcpy(at, &wide, sizeof(wide));
  if (DTypeSize(dtype_) == sizeof(half)) std::memcpy(at, &half, sizeof(half));
}

float TypedArray::Get(size_t i) const {
  const std::byte* at = bytes_.data() + i * DTypeSize(dtype_);
  float value = 0;
  double wide = 0;
  uint16_t half = 0;
  if (dtype_ == DType::kFloat32) std::memcpy(&value, at, sizeof(value));
  if (dtype_ == DType::kFloat64) std::memcpy(&wide, at, sizeof(wide));
  if (DTypeSize(dtype_) == sizeof(half)) std::memcpy(&half, at, sizeof(half));
  if (dtype_ == DType::kFloat64) return static_cast<float>(wide);
  if (dtype_ == DType::kFloat16) return HalfToFloat(half);
  if (dtype_ == DType::kBFloat16) return BFloat16ToFloat(half);
  return value;
}

std::vector<float> TypedArray::ToFloat() const {
  std::vector<float> values(n_);
  for (size_t i = 0; i < n_; ++i) values[i] = Get(i);
  return values;
}

std::vector<float> Times(float scale, const std::vector<float>& x) {
  std::vector<float> products(x);
  for (float& value : products) value = scale * value;
  return products;
}

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

const Draw& TestDraw() {
  static const Draw draw({.run_seed = 7, .step = 3});
  return draw;
}

std::vector<uint8_t> EncodeToVector(const Codec& codec, ConstView x, float scale) {
  std::vector<uint8_t> out(codec.MaxEncodedBytes(x.n, x.dtype));
  const auto used = codec.Encode(x, scale, TestDraw(), std::as_writable_bytes(std::span(out)));
  EXPECT_TRUE(used.ok()) << used.status();
  if (!used.ok()) return {};
  EXPECT_LE(*used, out.size());
  out.resize(*used);
  return out;
}

std::vector<uint8_t> EncodeFeedbackToVector(const Codec& codec, const Feedback& feedback) {
  std::vector<uint8_t> out(codec.MaxEncodedBytes(feedback.g.n, feedback.g.dtype));
  const auto used =
      codec.EncodeFeedback(feedback, TestDraw(), std::as_writable_bytes(std::span(out)));
  EXPECT_TRUE(used.ok()) << used.status();
  out.resize(used.value_or(0));
  return out;
}

ByteSpan AsBytes(const std::vector<uint8_t>& payload) { return std::as_bytes(std::span(payload)); }

std::vector<float> DecodeToVector(const Codec& codec, ByteSpan payload, size_t n, float scale) {
  std::vector<float> y(n, std::numeric_limits<float>::quiet_NaN());
  codec.Decode(payload, scale, MutableView{y.data(), DType::kFloat32, n});
  return y;
}

}  // namespace bdn
