// The properties of sign: what it keeps exactly, and that each payload that it takes is the one
// that it would write.

#include "compressors/sign.h"

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/kernel_targets.h"
#include "tests/compressors/codec_inputs.h"

namespace bdn {
namespace {

using ::testing::HasSubstr;
using Floats = std::vector<float>;

ConstView ViewOf(const Floats& x) { return {x.data(), DType::kFloat32, x.size()}; }

// Bytes of little-endian words.
std::vector<uint8_t> Payload(const std::vector<uint32_t>& words) {
  std::vector<uint8_t> bytes;
  for (const uint32_t word : words) {
    for (int shift = 0; shift < 32; shift += 8) bytes.push_back(word >> shift & 255);
  }
  return bytes;
}

absl::Status ValidateWords(const std::vector<uint32_t>& words, size_t n) {
  return MakeSign()->Validate(AsBytes(Payload(words)), n, DType::kFloat32);
}

std::string ErrorOf(const std::vector<uint32_t>& words, size_t n) {
  return std::string(ValidateWords(words, n).message());
}

TEST(Sign, KeepsSignsAndZerosExactly) {
  for (const size_t n : {1, 3, 32, 33, 4097, 9000}) {
    Floats x = MakeData("normal", n);
    for (size_t i = 0; i < n; ++i) x[i] = i % 3 == 0 ? 0.0f : std::copysign(1.0f, x[i]);
    for (const std::string& target : KernelTargets()) {
      const ScopedKernelTarget on(target);
      const auto payload = EncodeToVector(*MakeSign(), ViewOf(x));
      EXPECT_EQ(payload.size(), 4 + 2 * 4 * ((n + 31) / 32));
      EXPECT_TRUE(SameBits(DecodeToVector(*MakeSign(), AsBytes(payload), n), x)) << target;
    }
  }
}

TEST(Sign, SendsAZeroAnywhereAndNoBitmapForNone) {
  constexpr size_t kN = 9001;
  const Floats ones(kN, -1.0f);
  EXPECT_EQ(EncodeToVector(*MakeSign(), ViewOf(ones)).size(), 4 + 4 * 282u);
  for (const size_t at : {0, 31, 4096, 8999, 9000}) {
    Floats x = ones;
    x[at] = -0.0f;
    const auto payload = EncodeToVector(*MakeSign(), ViewOf(x));
    x[at] = 0.0f;
    EXPECT_TRUE(SameBits(DecodeToVector(*MakeSign(), AsBytes(payload), kN), x)) << at;
  }
}

TEST(Sign, DecodesTimesANegativeScale) {
  const Floats x = {5.0f, -5.0f, 0.0f, -0.0f};
  const auto payload = EncodeToVector(*MakeSign(), ViewOf(x));
  const Floats expected = {-0.5f, 0.5f, -0.0f, -0.0f};
  EXPECT_TRUE(SameBits(DecodeToVector(*MakeSign(), AsBytes(payload), 4, -0.5f), expected));
}

TEST(Sign, RefusesWhatTheLayoutForbids) {
  EXPECT_TRUE(ValidateWords({0, 0b10110}, 5).ok());
  EXPECT_TRUE(ValidateWords({1, 0b10110, 0b01001}, 5).ok());
  EXPECT_THAT(ErrorOf({0}, 0), HasSubstr("has 4 bytes, expected 0"));
  EXPECT_THAT(ErrorOf({0, 0, 1}, 5), HasSubstr("has 12 bytes, expected 8"));
  EXPECT_THAT(ErrorOf({1, 0}, 5), HasSubstr("has 8 bytes, expected 12"));
  EXPECT_THAT(ErrorOf({2, 0}, 5), HasSubstr("begins with 2, expected 0 or 1"));
  EXPECT_THAT(ErrorOf({0, 32}, 5), HasSubstr("bits past its 5 elements"));
  EXPECT_THAT(ErrorOf({1, 0, 33}, 5), HasSubstr("bits past its 5 elements"));
  EXPECT_THAT(ErrorOf({1, 3, 0}, 5), HasSubstr("a bitmap of zeros, and no zero"));
  EXPECT_THAT(ErrorOf({1, 3, 2}, 5), HasSubstr("both negative and zero"));
  EXPECT_THAT(ErrorOf({1, 4, 0, 5, 0}, 40), HasSubstr("both negative and zero"));
}

TEST(Sign, TakesOnlyWhatItWouldWrite) {
  size_t taken = 0;
  for (uint32_t zeros = 0; zeros < 3; ++zeros) {
    for (uint32_t bits = 0; bits < 256; ++bits) {
      std::vector<uint32_t> words = {zeros, bits % 16};
      if (zeros > 0) words.push_back(bits / 16);
      if (!ValidateWords(words, 3).ok()) continue;
      ++taken;
      const auto payload = Payload(words);
      const Floats decoded = DecodeToVector(*MakeSign(), AsBytes(payload), 3);
      EXPECT_EQ(EncodeToVector(*MakeSign(), ViewOf(decoded)), payload);
    }
  }
  // 3^3 arrays; those without a zero 16 times each, for the bits that no word has.
  EXPECT_EQ(taken, (27 - 8) + 16 * 8u);
}

}  // namespace
}  // namespace bdn
