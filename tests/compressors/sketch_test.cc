// The promises of sketch and exactsketch about sparse data, which the contract's dense data cannot
// show.

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "compressors/codec_spec.h"
#include "compressors/exact_sketch.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/kernel_targets.h"
#include "tests/compressors/codec_inputs.h"
#include "tests/reference/codec_reference.h"

namespace bdn {
namespace {

using ::testing::HasSubstr;
using Floats = std::vector<float>;
using Payload = std::vector<uint8_t>;
constexpr float kLargest = std::numeric_limits<float>::max();

std::shared_ptr<const Codec> CodecOf(const std::string& spec) {
  return ParseCodecSpec(spec)->codec;
}

Payload EncodeDrawn(const Codec& codec, const Floats& x, const Draw& draw = TestDraw()) {
  Payload out(codec.MaxEncodedBytes(x.size(), DType::kFloat32));
  const auto used = codec.Encode({x.data(), DType::kFloat32, x.size()}, 1.0f, draw,
                                 std::as_writable_bytes(std::span(out)));
  EXPECT_TRUE(used.ok()) << used.status();
  return out;
}

Floats Decoded(const Codec& codec, const Payload& payload, size_t n) {
  EXPECT_TRUE(codec.Validate(AsBytes(payload), n, DType::kFloat32).ok());
  return DecodeToVector(codec, AsBytes(payload), n);
}

absl::StatusOr<Payload> Sum(const Codec& codec, const std::vector<Payload>& payloads, size_t n,
                            float scale = 1.0f) {
  const std::vector<ByteSpan> in = [&] {
    std::vector<ByteSpan> spans;
    for (const Payload& payload : payloads) spans.push_back(AsBytes(payload));
    return spans;
  }();
  Payload out(codec.MaxEncodedBytes(n, DType::kFloat32));
  const auto used =
      codec.AddEncoded(in, scale, n, DType::kFloat32, std::as_writable_bytes(std::span(out)));
  if (!used.ok()) return used.status();
  EXPECT_EQ(*used, out.size());
  return out;
}

// n elements of which about a share is not zero: whole numbers from 1 to 100, some negative unless
// told not to be.
Floats SparseWhole(size_t n, double share, uint64_t seed, bool negative = true) {
  std::mt19937_64 random(seed);
  Floats x(n);
  for (float& value : x) {
    const uint64_t word = random();
    if (static_cast<double>(word >> 40) >= share * 0x1p24) continue;
    value = static_cast<float>(word % 100 + 1);
    if (negative && (word >> 20 & 1) == 1) value = -value;
  }
  return x;
}

size_t CountEqual(const Floats& a, const Floats& b) {
  size_t count = 0;
  for (size_t i = 0; i < a.size(); ++i) count += a[i] == b[i];
  return count;
}

size_t CountNonZeros(const Floats& x) { return x.size() - CountEqual(x, Floats(x.size())); }

class AnySketch : public ::testing::TestWithParam<const char*> {
 protected:
  const std::shared_ptr<const Codec> codec_ = CodecOf(GetParam());
};

TEST_P(AnySketch, SparseDataIsAsTheReferenceHasIt) {
  const Floats x = SparseWhole(20000, 0.03, 1);
  const Payload payload = EncodeDrawn(*codec_, x);
  EXPECT_TRUE(payload == reference::Encode(GetParam(), x, {TestDraw().k0(), TestDraw().k1()}));
  EXPECT_TRUE(SameBits(Decoded(*codec_, payload, x.size()),
                       reference::Decode(GetParam(), payload, x.size())));
}

// A share of 0.24 is all that exactsketch(cells=0.3) can find again, in many rounds; 0.4 is more.
TEST_P(AnySketch, FractionsAreAsTheReferenceHasThemOnEveryTarget) {
  constexpr size_t kElements = 20011;
  const Floats noise = MakeData("normal", kElements);
  for (const double share : {0.0, 0.05, 0.24, 0.4, 1.0}) {
    Floats x = SparseWhole(kElements, share, 1);
    for (size_t i = 0; i < kElements; ++i) x[i] = x[i] == 0 ? 0.0f : noise[i];
    const Payload expected = reference::Encode(GetParam(), x, {TestDraw().k0(), TestDraw().k1()});
    const Floats decoded = reference::Decode(GetParam(), expected, kElements);
    // Frames do not align payloads.
    Payload shifted(expected.size() + 1);
    std::copy(expected.begin(), expected.end(), shifted.begin() + 1);
    for (const std::string& target : KernelTargets()) {
      SCOPED_TRACE(target + " share " + std::to_string(share));
      const ScopedKernelTarget on(target);
      EXPECT_TRUE(EncodeDrawn(*codec_, x) == expected);
      EXPECT_TRUE(SameBits(Decoded(*codec_, expected, kElements), decoded));
      EXPECT_TRUE(
          SameBits(DecodeToVector(*codec_, AsBytes(shifted).subspan(1), kElements), decoded));
    }
  }
}

TEST_P(AnySketch, SumOfPayloadsIsThePayloadOfTheSum) {
  constexpr size_t kElements = 20000;
  Floats sum(kElements);
  std::vector<Payload> payloads;
  for (uint64_t worker = 0; worker < 5; ++worker) {
    const Floats x = SparseWhole(kElements, 0.03, worker, /*negative=*/false);
    for (size_t i = 0; i < kElements; ++i) sum[i] += 0.5f * x[i];
    payloads.push_back(EncodeDrawn(*codec_, x));
  }
  const auto added = Sum(*codec_, payloads, kElements, 0.5f);
  ASSERT_TRUE(added.ok()) << added.status();
  EXPECT_TRUE(*added == EncodeDrawn(*codec_, sum));
}

TEST_P(AnySketch, PayloadsDrawnOtherwiseAreNotAdded) {
  const Floats x = SparseWhole(100, 0.1, 1);
  const Payload other = EncodeDrawn(*codec_, x, Draw({.run_seed = 8}));
  const auto added = Sum(*codec_, {EncodeDrawn(*codec_, x), EncodeDrawn(*codec_, x), other}, 100);
  EXPECT_EQ(added.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(added.status().message()), HasSubstr("payload 2"));
}

TEST_P(AnySketch, SumThatOverflowsIsRefused) {
  Floats x(100);
  x[50] = kLargest;
  const Payload payload = EncodeDrawn(*codec_, x);
  const auto added = Sum(*codec_, {payload, payload}, 100, 0.5f);
  EXPECT_EQ(added.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(added.status().message()), HasSubstr("of the sum is not finite"));
  EXPECT_TRUE(Sum(*codec_, {payload}, 100, 0.5f).ok());
}

TEST_P(AnySketch, LoneElementsKeepEveryBit) {
  for (const float value : {1e-45f, -0.1f, kLargest, -kLargest}) {
    Floats x(1000);
    x[517] = value;
    EXPECT_TRUE(SameBits(Decoded(*codec_, EncodeDrawn(*codec_, x), 1000), x)) << value;
  }
}

TEST_P(AnySketch, WhatCancelsDecodesToPositiveZero) {
  const Floats x = SparseWhole(1000, 0.05, 1);
  const auto added =
      Sum(*codec_, {EncodeDrawn(*codec_, x), EncodeDrawn(*codec_, Times(-1.0f, x))}, 1000);
  ASSERT_TRUE(added.ok()) << added.status();
  EXPECT_TRUE(SameBits(Decoded(*codec_, *added, 1000), Floats(1000)));
}

TEST_P(AnySketch, ResidualStaysFiniteWhereCellsOverflow) {
  const Floats g = MakeData("largest", 1000);
  Floats residual(1000);
  for (int step = 0; step < 3; ++step) {
    EncodeFeedbackToVector(
        *codec_,
        {.g = {g.data(), DType::kFloat32, 1000}, .options = {}, .residual = residual.data()});
    for (const float value : residual) ASSERT_TRUE(std::isfinite(value));
  }
}

TEST_P(AnySketch, BitsPastTheLastElementAreRefused) {
  Payload payload = EncodeDrawn(*codec_, SparseWhole(33, 0.5, 1));
  payload[8 + 4] |= 2;
  EXPECT_FALSE(codec_->Validate(AsBytes(payload), 33, DType::kFloat32).ok());
}

INSTANTIATE_TEST_SUITE_P(Sketches, AnySketch,
                         ::testing::Values("sketch(columns=0.2)", "sketch(rows=1,columns=5000)",
                                           "sketch(rows=5,columns=0.1)",
                                           "sketch(rows=7,columns=0.1)", "exactsketch(cells=0.3)"));

TEST(Sketch, PayloadIsKeysBitmapAndCells) {
  EXPECT_EQ(CodecOf("sketch(columns=0.1)")->MaxEncodedBytes(1001, DType::kFloat32),
            8u + 32 * 4 + 3 * 101 * 4);
  EXPECT_EQ(CodecOf("sketch(rows=5,columns=64.9)")->MaxEncodedBytes(65, DType::kFloat32),
            8u + 3 * 4 + 5 * 64 * 4);
  EXPECT_EQ(CodecOf("sketch(rows=5,columns=64.9)")->MaxEncodedBytes(33, DType::kFloat32),
            8u + 2 * 4 + 5 * 33 * 4)
      << "no row needs more cells than there are elements";
  EXPECT_EQ(CodecOf("sketch(columns=64)")->MaxEncodedBytes(0, DType::kFloat32), 8u);
  EXPECT_EQ(CodecOf("exactsketch(cells=0.1)")->MaxEncodedBytes(1001, DType::kFloat32),
            8u + 32 * 4 + 3 * 34 * 4);
  EXPECT_EQ(CodecOf("exactsketch(cells=0.1)")->MaxEncodedBytes(1, DType::kFloat32), 8u + 4 + 6 * 4);
  EXPECT_EQ(CodecOf("exactsketch(cells=0.1)")->MaxEncodedBytes(0, DType::kFloat32), 8u);
}

// With as many cells a row as ten times the elements, two of three collide for about one in 35.
TEST(Sketch, MoreRowsFindMoreElementsExactly) {
  constexpr size_t kElements = 100000;
  const Floats x = SparseWhole(kElements, 0.01, 1);
  const auto wrong = [&](const std::string& spec) {
    const auto codec = CodecOf(spec);
    return kElements - CountEqual(Decoded(*codec, EncodeDrawn(*codec, x), kElements), x);
  };
  EXPECT_LT(wrong("sketch(rows=1,columns=0.1)"), 120u);
  EXPECT_GT(wrong("sketch(rows=1,columns=0.1)"), 60u);
  EXPECT_LT(wrong("sketch(columns=0.1)"), 45u);
  EXPECT_LT(wrong("sketch(rows=5,columns=0.1)"), 20u);
  EXPECT_LT(wrong("sketch(rows=7,columns=0.1)"), 8u);
}

TEST(Sketch, ZerosStayZeroHoweverFullTheCells) {
  const Floats x = SparseWhole(10000, 0.2, 1);
  const auto codec = CodecOf("sketch(columns=8)");
  const Floats decoded = Decoded(*codec, EncodeDrawn(*codec, x), 10000);
  for (size_t i = 0; i < x.size(); ++i) {
    if (x[i] == 0) {
      ASSERT_EQ(decoded[i], 0);
    }
  }
}

// Over the draws, what else is in a cell is as often added as taken away.
TEST(Sketch, MeanOverDrawsIsTheValue) {
  constexpr size_t kElements = 64;
  constexpr int kDraws = 4000;
  const Floats x = MakeData("normal", kElements);
  for (const char* const spec : {"sketch(rows=1,columns=16)", "sketch(columns=16)"}) {
    const auto codec = CodecOf(spec);
    std::vector<double> sum(kElements);
    std::vector<double> squares(kElements);
    for (Step step = 0; step < kDraws; ++step) {
      const Floats decoded =
          Decoded(*codec, EncodeDrawn(*codec, x, Draw({.step = step})), kElements);
      for (size_t i = 0; i < kElements; ++i) {
        sum[i] += decoded[i] - x[i];
        squares[i] += std::pow(decoded[i] - x[i], 2);
      }
    }
    for (size_t i = 0; i < kElements; ++i) {
      EXPECT_LT(std::abs(sum[i]), 5 * std::sqrt(squares[i])) << spec << " " << i;
    }
  }
}

std::shared_ptr<const Codec> ExactSketchOf(double cells_per_element, const Floats& x) {
  return MakeExactSketch({.cells = cells_per_element * static_cast<double>(CountNonZeros(x)) /
                                   static_cast<double>(x.size())});
}

TEST(ExactSketch, FindsSparseWholeNumbersExactly) {
  for (const size_t n : {10000, 30000, 100000}) {
    for (const double share : {0.05, 0.1}) {
      for (uint64_t seed = 0; seed < 3; ++seed) {
        const Floats x = SparseWhole(n, share, seed);
        const auto codec = ExactSketchOf(1.4, x);
        EXPECT_TRUE(SameBits(Decoded(*codec, EncodeDrawn(*codec, x), n), x)) << n << " " << share;
      }
    }
  }
}

TEST(ExactSketch, SumOfWorkersIsExactForTheUnion) {
  constexpr size_t kElements = 100000;
  for (const float scale : {1.0f, 0.25f}) {
    Floats sum(kElements);
    std::vector<Floats> inputs;
    for (uint64_t worker = 0; worker < 8; ++worker) {
      inputs.push_back(SparseWhole(kElements, 0.01, worker, /*negative=*/false));
      for (size_t i = 0; i < kElements; ++i) sum[i] += scale * inputs.back()[i];
    }
    const auto codec = ExactSketchOf(1.4, sum);
    std::vector<Payload> payloads;
    for (const Floats& x : inputs) payloads.push_back(EncodeDrawn(*codec, x));
    const auto added = Sum(*codec, payloads, kElements, scale);
    ASSERT_TRUE(added.ok()) << added.status();
    EXPECT_TRUE(SameBits(Decoded(*codec, *added, kElements), sum));
  }
}

TEST(ExactSketch, FindsFractionsToRounding) {
  constexpr size_t kElements = 100000;
  Floats x = SparseWhole(kElements, 0.05, 1);
  const Floats noise = MakeData("normal", kElements);
  for (size_t i = 0; i < kElements; ++i) x[i] = x[i] == 0 ? 0.0f : noise[i];
  const auto codec = ExactSketchOf(1.4, x);
  const Floats decoded = Decoded(*codec, EncodeDrawn(*codec, x), kElements);
  for (size_t i = 0; i < kElements; ++i) ASSERT_NEAR(decoded[i], x[i], 1e-5f) << i;
  // 1 - (1 - e^(-3 / 1.4))^3 of them were alone in a cell.
  const double bit_exact = static_cast<double>(CountEqual(decoded, x)) - kElements;
  EXPECT_GT(1 + bit_exact / static_cast<double>(CountNonZeros(x)), 0.3);
}

// All of these elements have one cell of the first row in common, and hardly any other. From 64
// on their number does not fit in the six bits that a narrow cell has for it.
TEST(ExactSketch, FindsManyElementsOfOneCell) {
  constexpr size_t kElements = 200000;
  constexpr size_t kWidth = 667;
  const std::string spec = "exactsketch(cells=0.01)";
  for (const size_t count : {63, 64, 65, 127, 128, 200}) {
    Floats x(kElements);
    size_t found = 0;
    for (size_t i = 0; i < kElements && found < count; ++i) {
      const uint64_t word = TestDraw().Word(static_cast<uint32_t>(3 * i));
      if (word * kWidth >> 32 == 5) x[i] = static_cast<float>(++found);
    }
    ASSERT_EQ(found, count);
    const Payload payload = EncodeDrawn(*CodecOf(spec), x);
    const Floats expected = reference::Decode(spec, payload, kElements);
    for (const std::string& target : KernelTargets()) {
      const ScopedKernelTarget on(target);
      Floats decoded(kElements);
      const size_t guessed = CodecOf(spec)->DecodeCounting(
          AsBytes(payload), 1.0f, {decoded.data(), DType::kFloat32, kElements});
      EXPECT_TRUE(SameBits(decoded, expected)) << count << " " << target;
      EXPECT_EQ(guessed, 0u) << count << " " << target;
    }
    EXPECT_TRUE(SameBits(expected, x));
  }
}

// Narrow cells hold ranks below 2^20.
TEST(ExactSketch, FindsMoreThanAMillionElements) {
  constexpr size_t kElements = (size_t{1} << 20) + 5000;
  const auto codec = CodecOf("exactsketch(cells=1.5)");
  for (const double share : {0.99, 1.0}) {
    const Floats x = SparseWhole(kElements, share, 1);
    EXPECT_TRUE(SameBits(Decoded(*codec, EncodeDrawn(*codec, x), kElements), x)) << share;
  }
}

TEST(ExactSketch, TooFewCellsLeaveEstimates) {
  constexpr size_t kElements = 100000;
  const Floats x = SparseWhole(kElements, 0.1, 1);
  size_t wrong_before = 0;
  for (const double cells : {1.3, 1.1, 0.8, 0.3}) {
    const auto codec = ExactSketchOf(cells, x);
    const Floats decoded = Decoded(*codec, EncodeDrawn(*codec, x), kElements);
    for (size_t i = 0; i < kElements; ++i) {
      ASSERT_TRUE(std::isfinite(decoded[i]));
      if (x[i] == 0) {
        ASSERT_EQ(decoded[i], 0);
      }
    }
    const size_t wrong = kElements - CountEqual(decoded, x);
    EXPECT_EQ(wrong == 0, cells == 1.3);
    Floats counted(kElements);
    const Payload payload = EncodeDrawn(*codec, x);
    const size_t guessed =
        codec->DecodeCounting(AsBytes(payload), 1.0f, {counted.data(), DType::kFloat32, kElements});
    EXPECT_TRUE(SameBits(counted, decoded));
    EXPECT_EQ(guessed == 0, cells == 1.3);
    // A guess may be right by chance, but no element that was found is wrong.
    EXPECT_GE(guessed, wrong);
    EXPECT_LE(guessed, CountNonZeros(x));
    EXPECT_GE(wrong, wrong_before);
    wrong_before = wrong;
  }
}

TEST(ExactSketch, LeavesNoResidualWhereExact) {
  const Floats g = SparseWhole(10000, 0.05, 1);
  const auto codec = ExactSketchOf(1.5, g);
  Floats residual(10000);
  EncodeFeedbackToVector(
      *codec,
      {.g = {g.data(), DType::kFloat32, g.size()}, .options = {}, .residual = residual.data()});
  EXPECT_EQ(CountNonZeros(residual), 0u);
}

}  // namespace
}  // namespace bdn
