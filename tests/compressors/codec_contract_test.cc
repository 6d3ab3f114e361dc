// The contract of all codecs. A codec adds one line to kCodecs (codec_cases.h).

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "common/base/float_guard.h"
#include "compressors/codec_spec.h"
#include "compressors/memory/delta.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/kernel_targets.h"
#include "tests/compressors/codec_cases.h"
#include "tests/compressors/codec_inputs.h"
#include "tests/reference/codec_reference.h"

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace bdn {
namespace {

using ::testing::HasSubstr;

reference::Keys TestKeys() { return {TestDraw().k0(), TestDraw().k1()}; }
constexpr DType kInputs[] = {DType::kFloat32, DType::kFloat16, DType::kBFloat16};
constexpr size_t kSizes[] = {0, 1, 7, 8, 9, 31, 32, 33, 1000, 65537};
constexpr float kScales[] = {1.0f, 0.37f};

class CodecContract : public ::testing::TestWithParam<std::tuple<CodecCase, DType>> {
 protected:
  void SetUp() override {
    auto link = ParseCodecSpec(test_case().spec);
    ASSERT_TRUE(link.ok()) << link.status();
    codec_ = link->codec;
  }
  static const CodecCase& test_case() { return std::get<0>(GetParam()); }
  static DType dtype() { return std::get<1>(GetParam()); }
  TypedArray Data(const std::string& kind, size_t n) const {
    return TypedArray::Of(dtype(), MakeData(kind, n));
  }
  template <typename Check>
  void ForEachInput(const Check& check) const {
    for (const std::string& kind : DataKinds()) {
      for (const size_t n : kSizes) {
        SCOPED_TRACE(kind + " n=" + std::to_string(n));
        check(Data(kind, n), n);
      }
    }
  }

  std::shared_ptr<const Codec> codec_;
};

// Each is instantiated with the codecs that make the promise of its name (CodecPromises).
class ContractingCodec : public CodecContract {};
class CodecThatAddsUp : public CodecContract {};
class CodecThatReadsAll : public CodecContract {};

TEST_P(CodecContract, BytesAreTheReferencesOnEveryTarget) {
  ForEachInput([&](const TypedArray& x, size_t) {
    for (const float scale : kScales) {
      const auto expected =
          reference::Encode(test_case().spec, Times(scale, x.ToFloat()), TestKeys());
      for (const std::string& target : KernelTargets()) {
        const ScopedKernelTarget on(target);
        const auto payload = EncodeToVector(*codec_, x.view(), scale);
        ASSERT_TRUE(payload == expected) << target << " scale " << scale;
      }
    }
  });
}

TEST_P(CodecContract, DecodesAsTheReferenceOnEveryTarget) {
  ForEachInput([&](const TypedArray& x, size_t n) {
    const auto payload = reference::Encode(test_case().spec, x.ToFloat(), TestKeys());
    const auto expected = reference::Decode(test_case().spec, payload, n);
    for (const std::string& target : KernelTargets()) {
      const ScopedKernelTarget on(target);
      ASSERT_TRUE(codec_->Validate(AsBytes(payload), n, dtype()).ok());
      ASSERT_TRUE(SameBits(DecodeToVector(*codec_, AsBytes(payload), n), expected)) << target;
    }
  });
}

TEST_P(CodecContract, DecodesIntoTheInputsType) {
  ForEachInput([&](const TypedArray& x, size_t n) {
    const auto payload = EncodeToVector(*codec_, x.view());
    for (const float scale : kScales) {
      const auto exact = DecodeToVector(*codec_, AsBytes(payload), n, scale);
      for (const std::string& target : KernelTargets()) {
        const ScopedKernelTarget on(target);
        TypedArray y(dtype(), n);
        for (size_t i = 0; i < n; ++i) y.Set(i, 77.0f);
        codec_->Decode(AsBytes(payload), scale, y.view());
        ASSERT_TRUE(y == TypedArray::Of(dtype(), exact)) << target << " scale " << scale;
      }
    }
  });
}

TEST_P(CodecContract, DecodeAddIsDecodeThenAdd) {
  ForEachInput([&](const TypedArray& x, size_t n) {
    const auto payload = EncodeToVector(*codec_, x.view());
    const auto start = MakeData("normal", n, 5);
    for (const float scale : kScales) {
      auto expected = DecodeToVector(*codec_, AsBytes(payload), n, scale);
      for (size_t i = 0; i < n; ++i) expected[i] = start[i] + expected[i];
      for (const std::string& target : KernelTargets()) {
        const ScopedKernelTarget on(target);
        auto y = start;
        codec_->DecodeAdd(AsBytes(payload), scale, MutableView{y.data(), DType::kFloat32, n});
        ASSERT_TRUE(SameBits(y, expected)) << target << " scale " << scale;
      }
    }
  });
}

float Clamp(float value) {
  const float largest = std::numeric_limits<float>::max();
  return std::clamp(value, -largest, largest);
}

float LargestMagnitude(const TypedArray& x) {
  float largest = 0;
  for (const float value : x.ToFloat()) largest = std::max(largest, std::abs(value));
  return largest;
}

// p, computed plainly: the memory comes first, then the codec sees its sum.
TEST_P(CodecContract, EncodeFeedbackIsAccumulateThenEncodeThenSubtract) {
  ForEachInput([&](const TypedArray& g, size_t n) {
    const auto start = MakeData("normal", n, 3);
    for (const float scale : kScales) {
      std::vector<float> p(n);
      for (size_t i = 0; i < n; ++i) p[i] = Clamp(scale * g.Get(i) + 0.75f * start[i]);
      const auto payload = EncodeToVector(*codec_, {p.data(), DType::kFloat32, n});
      auto expected = DecodeToVector(*codec_, AsBytes(payload), n);
      for (size_t i = 0; i < n; ++i) expected[i] = Clamp(p[i] - expected[i]);
      for (const std::string& target : KernelTargets()) {
        const ScopedKernelTarget on(target);
        auto residual = start;
        const auto fused =
            EncodeFeedbackToVector(*codec_, {.g = g.view(),
                                             .options = {.scale = scale, .decay = 0.75f},
                                             .residual = residual.data()});
        ASSERT_TRUE(fused == payload) << target << " scale " << scale;
        ASSERT_TRUE(SameBits(residual, expected)) << target << " scale " << scale;
      }
    }
  });
}

TEST_P(CodecContract, NonFiniteFeedbackChangesNothing) {
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    TypedArray g = Data("normal", 9000);
    g.Set(8123, bad);
    const auto start = MakeData("normal", 9000, 3);
    for (const std::string& target : KernelTargets()) {
      const ScopedKernelTarget on(target);
      auto residual = start;
      auto momentum = start;
      std::vector<std::byte> out(codec_->MaxEncodedBytes(9000, dtype()));
      const auto result = codec_->EncodeFeedback({.g = g.view(),
                                                  .options = {.momentum = 0.9f},
                                                  .residual = residual.data(),
                                                  .momentum = momentum.data()},
                                                 TestDraw(), out);
      EXPECT_EQ(result.status().code(), absl::StatusCode::kInvalidArgument);
      EXPECT_TRUE(SameBits(residual, start));
      EXPECT_TRUE(SameBits(momentum, start));
    }
  }
}

TEST_P(ContractingCodec, DeltaKeepsBothEndsAlike) {
  ForEachInput([&](const TypedArray& w, size_t n) {
    if (LargestMagnitude(w) > 1e38f) return;
    auto sender = MakeData("normal", n, 4);
    auto receiver = sender;
    std::vector<std::byte> out(codec_->MaxEncodedBytes(n, dtype()));
    for (int step = 0; step < 3; ++step) {
      const auto used = EncodeDelta(*codec_, w.view(), TestDraw(), sender.data(), out);
      ASSERT_TRUE(used.ok()) << used.status();
      const ByteSpan payload = ByteSpan(out).first(*used);
      ASSERT_TRUE(codec_->Validate(payload, n, dtype()).ok());
      ApplyDelta(*codec_, payload, n, receiver.data());
      ASSERT_TRUE(SameBits(sender, receiver));
    }
  });
}

TEST_P(CodecContract, DecodeSumIsDecodeAddInOrder) {
  ForEachInput([&](const TypedArray& x, size_t n) {
    const auto a = EncodeToVector(*codec_, x.view());
    const auto b = EncodeToVector(*codec_, Data("normal", n).view());
    const std::vector<ByteSpan> payloads = {AsBytes(a), AsBytes(b), AsBytes(a)};
    for (const std::string& target : KernelTargets()) {
      const ScopedKernelTarget on(target);
      std::vector<float> expected(n, 0.0f);
      const MutableView sum{expected.data(), DType::kFloat32, n};
      for (const ByteSpan payload : payloads) codec_->DecodeAddTransformed(payload, 0.37f, sum);
      codec_->InverseTransform(sum);
      std::vector<float> y(n, 5.0f);
      codec_->DecodeSum(payloads, 0.37f, {y.data(), DType::kFloat32, n});
      ASSERT_TRUE(SameBits(y, expected)) << target;
    }
  });
}

TEST_P(CodecThatAddsUp, PayloadsAddUpUndecoded) {
  ForEachInput([&](const TypedArray& x, size_t n) {
    if (LargestMagnitude(x) > 1e38f) return;
    const auto a = EncodeToVector(*codec_, x.view());
    const auto b = EncodeToVector(*codec_, Data("few_values", n).view());
    const std::vector<ByteSpan> payloads = {AsBytes(a), AsBytes(b)};
    for (const std::string& target : KernelTargets()) {
      const ScopedKernelTarget on(target);
      std::vector<std::byte> out(codec_->MaxEncodedBytes(n, dtype()));
      const auto used = codec_->AddEncoded(payloads, 0.5f, n, dtype(), out);
      ASSERT_TRUE(used.ok()) << used.status();
      const ByteSpan sum = ByteSpan(out).first(*used);
      ASSERT_TRUE(codec_->Validate(sum, n, dtype()).ok());
      std::vector<float> expected(n);
      codec_->DecodeSum(payloads, 1.0f, {expected.data(), DType::kFloat32, n});
      const auto got = DecodeToVector(*codec_, sum, n);
      for (size_t i = 0; i < n; ++i) {
        ASSERT_NEAR(got[i], 0.5f * expected[i], 1e-6f * std::abs(expected[i]))
            << target << " " << i;
      }
    }
  });
}

TEST_P(CodecContract, EncodingTwiceGivesTheSameBytes) {
  const TypedArray x = Data("normal", 5000);
  EXPECT_TRUE(EncodeToVector(*codec_, x.view()) == EncodeToVector(*codec_, x.view()));
}

TEST_P(ContractingCodec, WhatIsLeftIsNoLongerThanWhatCameIn) {
  for (const size_t n : kSizes) {
    const TypedArray x = Data("normal", n);
    const auto decoded = DecodeToVector(*codec_, AsBytes(EncodeToVector(*codec_, x.view())), n);
    double before = 0;
    double after = 0;
    for (size_t i = 0; i < n; ++i) {
      before += std::pow(x.Get(i), 2);
      after += std::pow(x.Get(i) - decoded[i], 2);
    }
    // `n` elements of like size: each codec must catch a part, the lossless all of it.
    if (n > 0) {
      EXPECT_LT(after, before) << n;
    }
    if (codec_->lossless()) {
      EXPECT_EQ(after, 0);
    }
  }
}

TEST_P(CodecContract, PayloadsNeedNoAlignment) {
  const size_t n = 1000;
  const TypedArray x = Data("normal", n);
  const auto payload = EncodeToVector(*codec_, x.view());
  for (size_t shift = 1; shift < 4; ++shift) {
    std::vector<std::byte> out(shift + codec_->MaxEncodedBytes(n, dtype()));
    const MutableByteSpan room = std::span(out).subspan(shift);
    const auto used = codec_->Encode(x.view(), 1.0f, TestDraw(), room);
    ASSERT_TRUE(used.ok());
    const ByteSpan shifted = room.first(*used);
    EXPECT_EQ(std::memcmp(shifted.data(), payload.data(), payload.size()), 0);
    EXPECT_TRUE(codec_->Validate(shifted, n, dtype()).ok());
    EXPECT_TRUE(SameBits(DecodeToVector(*codec_, shifted, n),
                         DecodeToVector(*codec_, AsBytes(payload), n)));
  }
}

TEST_P(CodecThatReadsAll, NonFiniteInputIsNamed) {
  const auto try_value = [&](float value, float scale, const std::string& word) {
    for (const size_t at : {size_t{0}, size_t{17}, size_t{4999}}) {
      TypedArray x = Data("normal", 5000);
      x.Set(at, value);
      std::vector<std::byte> out(codec_->MaxEncodedBytes(5000, dtype()));
      for (const std::string& target : KernelTargets()) {
        const ScopedKernelTarget on(target);
        const auto result = codec_->Encode(x.view(), scale, TestDraw(), out);
        EXPECT_EQ(result.status().code(), absl::StatusCode::kInvalidArgument);
        EXPECT_EQ(result.status().message(), "element " + std::to_string(at) + " is " + word);
      }
    }
  };
  const float infinity = std::numeric_limits<float>::infinity();
  try_value(std::numeric_limits<float>::quiet_NaN(), 1.0f, "nan");
  try_value(infinity, 1.0f, "infinite");
  try_value(-infinity, 0.5f, "infinite");
  // Finite until it is scaled.
  try_value(60000.0f, 1e36f, "infinite");
}

TEST_P(CodecContract, HostileBytesAreRefusedOrSafe) {
  // A payload that Validate lets through must decode, to finite numbers, into memory of exactly the
  // right size (the address sanitizer watches), and encode again.
  const auto try_payload = [&](const std::vector<uint8_t>& bytes, size_t n) {
    const std::vector<uint8_t> exact(bytes);  // capacity == size
    if (!codec_->Validate(AsBytes(exact), n, dtype()).ok()) return false;
    const auto decoded = DecodeToVector(*codec_, AsBytes(exact), n);
    auto sum = std::vector<float>(n, 0.0f);
    codec_->DecodeAdd(AsBytes(exact), 1.0f, MutableView{sum.data(), DType::kFloat32, n});
    for (const float value : decoded) EXPECT_TRUE(std::isfinite(value));
    EncodeToVector(*codec_, ConstView{decoded.data(), DType::kFloat32, n});
    return true;
  };
  for (const size_t n : {1, 7, 32, 33, 100}) {
    const auto good = EncodeToVector(*codec_, Data("normal", n).view());
    ASSERT_TRUE(try_payload(good, n));
    for (size_t size = 0; size < good.size(); ++size) {
      EXPECT_FALSE(try_payload({good.begin(), good.begin() + static_cast<ptrdiff_t>(size)}, n));
    }
    for (size_t extra = 1; extra <= 8; ++extra) {
      auto longer = good;
      longer.resize(good.size() + extra);
      EXPECT_FALSE(try_payload(longer, n));
    }
    for (size_t bit = 0; bit < 8 * good.size(); ++bit) {
      auto flipped = good;
      flipped[bit / 8] ^= static_cast<uint8_t>(1u << (bit % 8));
      try_payload(flipped, n);
    }
    for (const uint8_t fill : {0x00, 0x7f, 0x80, 0xff}) {
      try_payload(std::vector<uint8_t>(good.size(), fill), n);
    }
  }
}

// Whatever its bytes have become since it was valid.
TEST_P(CodecContract, WhatBoundsItselfStaysWithinItsArrays) {
  if (!codec_->bounds_itself()) return;
  for (const size_t n : {1, 7, 32, 33, 100, 1000}) {
    const size_t size = EncodeToVector(*codec_, Data("normal", n).view()).size();
    ASSERT_EQ(size, codec_->MaxEncodedBytes(n, dtype())) << "of n elements there is one size";
    for (const uint8_t fill : {0x00, 0x01, 0x5a, 0x7f, 0x80, 0xff}) {
      const std::vector<uint8_t> bytes(size, fill);
      const std::vector<ByteSpan> payloads = {AsBytes(bytes), AsBytes(bytes)};
      for (const std::string& target : KernelTargets()) {
        const ScopedKernelTarget on(target);
        // Of exactly the right sizes: the address sanitizer watches.
        std::vector<float> y(n);
        const MutableView view{y.data(), DType::kFloat32, n};
        codec_->Decode(payloads[0], 1.0f, view);
        codec_->DecodeAdd(payloads[0], 1.0f, view);
        codec_->DecodeSum(payloads, 1.0f, view);
        codec_->DecodeAddTransformed(payloads[0], 1.0f, view);
        codec_->InverseTransform(view);
      }
    }
  }
}

TEST_P(CodecContract, AnEmptyPayloadIsForNoElements) {
  const auto payload = EncodeToVector(*codec_, TypedArray(dtype(), 0).view());
  EXPECT_TRUE(codec_->Validate(AsBytes(payload), 0, dtype()).ok());
  EXPECT_FALSE(codec_->Validate(AsBytes(payload), 1, dtype()).ok());
}

#if defined(__x86_64__)
TEST_P(CodecContract, FlushToZeroOutsideAFloatGuardChangesNothing) {
  const TypedArray x = Data("subnormal", 1000);
  const auto payload = EncodeToVector(*codec_, x.view());
  const auto decoded = DecodeToVector(*codec_, AsBytes(payload), 1000);
  const unsigned saved = _mm_getcsr();
  _mm_setcsr(saved | 0x8040);  // flush to zero, denormals are zero
  std::vector<uint8_t> guarded_payload;
  std::vector<float> guarded_decoded;
  {
    const FloatGuard guard;
    guarded_payload = EncodeToVector(*codec_, x.view());
    guarded_decoded = DecodeToVector(*codec_, AsBytes(payload), 1000);
  }
  const bool still_set = (_mm_getcsr() & 0x8040) == 0x8040;
  _mm_setcsr(saved);
  EXPECT_TRUE(still_set);
  EXPECT_TRUE(guarded_payload == payload);
  EXPECT_TRUE(SameBits(guarded_decoded, decoded));
}
#endif

TEST_P(CodecContract, RefusesTypesItDoesNotTake) {
  EXPECT_FALSE(codec_->Supports(DType::kInt32));
  EXPECT_FALSE(codec_->Validate({}, 0, DType::kInt32).ok());
  EXPECT_EQ(codec_->Supports(DType::kFloat64), codec_->id() == CodecId::kNone);
}

TEST_P(CodecContract, SpecBuildsTheSameCodec) { EXPECT_EQ(codec_->spec(), test_case().spec); }

std::string CaseName(const ::testing::TestParamInfo<CodecContract::ParamType>& info) {
  return std::string(std::get<0>(info.param).label) + "_" + DTypeName(std::get<1>(info.param));
}

INSTANTIATE_TEST_SUITE_P(Codecs, CodecContract,
                         ::testing::Combine(::testing::ValuesIn(kCodecs),
                                            ::testing::ValuesIn(kInputs)),
                         CaseName);

auto CasesThat(bool CodecPromises::*promise) {
  return ::testing::Combine(::testing::ValuesIn(CodecsThat(promise)), ::testing::ValuesIn(kInputs));
}
INSTANTIATE_TEST_SUITE_P(Codecs, ContractingCodec, CasesThat(&CodecPromises::contracts), CaseName);
INSTANTIATE_TEST_SUITE_P(Codecs, CodecThatAddsUp, CasesThat(&CodecPromises::adds_up), CaseName);
INSTANTIATE_TEST_SUITE_P(Codecs, CodecThatReadsAll, CasesThat(&CodecPromises::reads_all), CaseName);

// So that no linear codec is left out by mistake.
TEST(CodecCases, EveryLinearCodecButSketchesAddsUp) {
  for (const CodecCase& codec : kCodecs) {
    const auto link = ParseCodecSpec(codec.spec);
    const CodecId id = link->codec->id();
    const bool is_sketch = id == CodecId::kSketch || id == CodecId::kExactSketch;
    EXPECT_EQ(link->codec->linear(), codec.promises.adds_up || is_sketch) << codec.spec;
  }
}

TEST(CodecCases, WhatCarriesSumsLosesNothingOfThem) {
  constexpr size_t kN = 1000;
  const auto x = MakeData("normal", kN);
  const auto y = MakeData("spread", kN);
  for (const CodecCase& tested : kCodecs) {
    const auto codec = ParseCodecSpec(tested.spec)->codec;
    // A scaled array is added without decoding, and so scaled once.
    if (!codec->carries_sums() || codec->scales_draw()) continue;
    const auto a = EncodeToVector(*codec, {x.data(), DType::kFloat32, kN});
    const auto b = EncodeToVector(*codec, {y.data(), DType::kFloat32, kN});
    const std::vector<ByteSpan> payloads = {AsBytes(a), AsBytes(b)};
    std::vector<float> sum(kN);
    codec->DecodeSum(payloads, 1.0f, {sum.data(), DType::kFloat32, kN});
    const auto answer = EncodeToVector(*codec, {sum.data(), DType::kFloat32, kN});
    EXPECT_EQ(DecodeToVector(*codec, AsBytes(answer), kN), sum) << tested.spec;
  }
}

TEST(NoneOfFloat64, KeepsEveryBit) {
  const auto codec = ParseCodecSpec("none")->codec;
  for (const size_t n : kSizes) {
    std::vector<double> x(n);
    const auto data = MakeData("spread", n);
    for (size_t i = 0; i < n; ++i) x[i] = data[i] * (1.0 + 1e-12);
    const ConstView view{x.data(), DType::kFloat64, n};
    const auto payload = EncodeToVector(*codec, view);
    EXPECT_TRUE(payload == reference::EncodeFloat64(x));
    EXPECT_TRUE(codec->Validate(AsBytes(payload), n, DType::kFloat64).ok());
    std::vector<double> y(n, 1.0);
    codec->DecodeAdd(AsBytes(payload), 0.5f, MutableView{y.data(), DType::kFloat64, n});
    for (size_t i = 0; i < n; ++i) ASSERT_EQ(y[i], 1.0 + 0.5 * x[i]);
    codec->Decode(AsBytes(payload), 1.0f, MutableView{y.data(), DType::kFloat64, n});
    EXPECT_EQ(y, x);
  }
}

TEST(NoneOfFloat64, NamesNonFiniteElements) {
  const auto codec = ParseCodecSpec("none")->codec;
  std::vector<double> x(100, 1e300);
  x[41] = std::numeric_limits<double>::infinity();
  std::vector<std::byte> out(800);
  const auto result = codec->Encode({x.data(), DType::kFloat64, 100}, 1.0f, TestDraw(), out);
  EXPECT_THAT(std::string(result.status().message()), HasSubstr("element 41 is infinite"));
  const auto payload = reference::EncodeFloat64(x);
  EXPECT_FALSE(codec->Validate(AsBytes(payload), 100, DType::kFloat64).ok());
}

}  // namespace
}  // namespace bdn
