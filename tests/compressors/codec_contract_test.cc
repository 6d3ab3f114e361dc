// What every codec must do, whatever it is. A codec adds one line to kCodecs.

#include <cmath>
#include <cstdlib>
#include <limits>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "common/base/float_guard.h"
#include "compressors/codec_table.h"
#include "compressors/kernels/kernel_targets.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/compressors/codec_inputs.h"
#include "tests/reference/codec_reference.h"

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace bdn {
namespace {

using ::testing::HasSubstr;

struct CodecCase {
  const char* label;
  const char* spec;
  reference::Codec reference;
};

const CodecCase kCodecs[] = {
    {"None", "none", {"none"}},
    {"Fp16", "fp16", {"fp16"}},
    {"Bf16", "bf16", {"bf16"}},
    {"OneBit", "onebit", {"onebit"}},
    {"OneBitBlock32", "onebit(block=32)", {"onebit", 32}},
    {"OneBitBlock256", "onebit(block=256)", {"onebit", 256}},
    {"OneBitBlock8192", "onebit(block=8192)", {"onebit", 8192}},
    {"TopKSmall", "topk(ratio=0.01)", {"topk", 0, 0.01}},
    {"TopKHalf", "topk(ratio=0.5)", {"topk", 0, 0.5}},
    {"TopKAll", "topk(ratio=1)", {"topk", 0, 1.0}},
};
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

  std::shared_ptr<const Compressor> codec_;
};

TEST_P(CodecContract, BytesAreTheReferencesOnEveryTarget) {
  ForEachInput([&](const TypedArray& x, size_t) {
    for (const float scale : kScales) {
      const auto expected = reference::Encode(test_case().reference, Times(scale, x.ToFloat()));
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
    const auto payload = reference::Encode(test_case().reference, x.ToFloat());
    const auto expected = reference::Decode(test_case().reference, payload, n);
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

// Residuals are float32.
class ResidualContract : public CodecContract {};

TEST_P(ResidualContract, EncodeResidualIsEncodeThenSubtract) {
  ForEachInput([&](const TypedArray& x, size_t n) {
    const auto payload = EncodeToVector(*codec_, x.view());
    auto expected = DecodeToVector(*codec_, AsBytes(payload), n);
    for (size_t i = 0; i < n; ++i) expected[i] = x.Get(i) - expected[i];
    for (const std::string& target : KernelTargets()) {
      const ScopedKernelTarget on(target);
      auto residual = x.ToFloat();
      ASSERT_TRUE(EncodeResidualToVector(*codec_, &residual) == payload) << target;
      ASSERT_TRUE(SameBits(residual, expected)) << target;
    }
  });
}

TEST_P(CodecContract, WhatIsLeftIsNoLongerThanWhatCameIn) {
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
    const MutableByteSpan shifted = std::span(out).subspan(shift);
    ASSERT_TRUE(codec_->Encode(x.view(), 1.0f, Draw(), shifted).ok());
    EXPECT_EQ(std::memcmp(shifted.data(), payload.data(), payload.size()), 0);
    EXPECT_TRUE(codec_->Validate(shifted, n, dtype()).ok());
    EXPECT_TRUE(SameBits(DecodeToVector(*codec_, shifted, n),
                         DecodeToVector(*codec_, AsBytes(payload), n)));
  }
}

TEST_P(CodecContract, NonFiniteInputIsNamedAndNothingWritten) {
  const auto try_value = [&](float value, float scale, const std::string& word) {
    for (const size_t at : {size_t{0}, size_t{17}, size_t{4999}}) {
      TypedArray x = Data("normal", 5000);
      x.Set(at, value);
      std::vector<std::byte> out(codec_->MaxEncodedBytes(5000, dtype()), std::byte{0xAB});
      const auto untouched = out;
      for (const std::string& target : KernelTargets()) {
        const ScopedKernelTarget on(target);
        const auto result = codec_->Encode(x.view(), scale, Draw(), out);
        EXPECT_EQ(result.status().code(), absl::StatusCode::kInvalidArgument);
        EXPECT_EQ(result.status().message(), "element " + std::to_string(at) + " is " + word);
        EXPECT_TRUE(out == untouched);
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
  // What Validate lets through must decode, to finite numbers, into memory of exactly the right
  // size (the address sanitizer watches), and encode again.
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
INSTANTIATE_TEST_SUITE_P(Codecs, ResidualContract,
                         ::testing::Combine(::testing::ValuesIn(kCodecs),
                                            ::testing::Values(DType::kFloat32)),
                         CaseName);

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
  const auto result = codec->Encode({x.data(), DType::kFloat64, 100}, 1.0f, Draw(), out);
  EXPECT_THAT(std::string(result.status().message()), HasSubstr("element 41 is infinite"));
  const auto payload = reference::EncodeFloat64(x);
  EXPECT_FALSE(codec->Validate(AsBytes(payload), 100, DType::kFloat64).ok());
}

}  // namespace
}  // namespace bdn
