#include "kernels/float_kernels.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/kernel_targets.h"
#include "tests/compressors/codec_inputs.h"

namespace bdn {
namespace {

// Every exponent and sign with mantissas at and next to every rounding boundary, and a spread.
std::vector<float> FloatsThatRoundHard() {
  std::vector<float> floats;
  for (uint32_t top = 0; top < 512; ++top) {
    for (uint32_t bit = 0; bit <= 23; ++bit) {
      for (const int32_t nudge : {-1, 0, 1}) {
        const uint32_t mantissa = ((1u << bit) + static_cast<uint32_t>(nudge)) & 0x7fffffu;
        floats.push_back(std::bit_cast<float>(top << 23 | mantissa));
        floats.push_back(std::bit_cast<float>(top << 23 | (mantissa | 0x2000u)));
        floats.push_back(std::bit_cast<float>(top << 23 | (mantissa ^ 0x7fffffu)));
      }
    }
    for (uint32_t i = 0; i < 256; ++i) {
      floats.push_back(std::bit_cast<float>(top << 23 | (i * 0x9E3779B9u >> 9)));
    }
  }
  return floats;
}

class FloatKernels : public ::testing::TestWithParam<std::string> {
 protected:
  const ScopedKernelTarget on_{GetParam()};
};

TEST_P(FloatKernels, NarrowAsTheScalarConversionsDo) {
  const auto x = FloatsThatRoundHard();
  std::vector<uint16_t> half(x.size());
  std::vector<uint16_t> brain(x.size());
  const ConstView from{x.data(), DType::kFloat32, x.size()};
  ConvertScaled(from, 1.0f, {half.data(), DType::kFloat16, x.size()});
  ConvertScaled(from, 1.0f, {brain.data(), DType::kBFloat16, x.size()});
  for (size_t i = 0; i < x.size(); ++i) {
    // A multiplication by 1 makes a signalling NaN quiet, which the conversion does anyway.
    ASSERT_EQ(half[i], FloatToHalf(x[i])) << std::hexfloat << x[i];
    if (std::isnan(x[i])) continue;
    ASSERT_EQ(brain[i], FloatToBFloat16(x[i])) << std::hexfloat << x[i];
  }
}

TEST_P(FloatKernels, WidenAsTheScalarConversionsDo) {
  std::vector<uint16_t> bits(65536);
  for (size_t i = 0; i < bits.size(); ++i) bits[i] = static_cast<uint16_t>(i);
  std::vector<float> half(bits.size());
  std::vector<float> brain(bits.size());
  ConvertScaled({bits.data(), DType::kFloat16, bits.size()}, 1.0f,
                {half.data(), DType::kFloat32, bits.size()});
  ConvertScaled({bits.data(), DType::kBFloat16, bits.size()}, 1.0f,
                {brain.data(), DType::kFloat32, bits.size()});
  const auto same = [](float a, float b) {
    return (std::isnan(a) && std::isnan(b)) ||
           std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b);
  };
  for (size_t i = 0; i < bits.size(); ++i) {
    ASSERT_TRUE(same(half[i], HalfToFloat(bits[i]))) << std::hex << i;
    ASSERT_TRUE(same(brain[i], BFloat16ToFloat(bits[i]))) << std::hex << i;
  }
}

TEST_P(FloatKernels, FindTheFirstNonFiniteElementAnywhere) {
  for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16, DType::kFloat64}) {
    for (const size_t n : {0, 1, 15, 17, 4096, 4097, 9000}) {
      TypedArray x = TypedArray::Of(dtype, MakeData("normal", n));
      EXPECT_EQ(FirstNonFinite(x.view(), 1.0f), n);
      for (size_t at = n; at-- > 0; at -= std::min(at, size_t{97})) {
        x.Set(at, at % 2 == 0 ? INFINITY : NAN);
        ASSERT_EQ(FirstNonFinite(x.view(), 1.0f), at);
      }
    }
  }
}

TEST_P(FloatKernels, AddInTwoRoundings) {
  const size_t n = 1003;
  const auto x = MakeData("spread", n, 1);
  auto y = MakeData("spread", n, 2);
  auto expected = y;
  for (size_t i = 0; i < n; ++i) {
    const volatile float product = 0.3f * x[i];  // volatile: rounded before it is added
    expected[i] += product;
  }
  AddScaled({x.data(), DType::kFloat32, n}, 0.3f, {y.data(), DType::kFloat32, n});
  EXPECT_TRUE(SameBits(y, expected));
}

TEST_P(FloatKernels, SumInOnePassWhatAreSeveral) {
  for (const size_t count : {1, 2, 4, 7}) {
    for (const size_t n : {0, 1, 17, 64, 1000, 4099}) {
      std::vector<std::vector<float>> x;
      std::vector<ScaledFloats> sources;
      for (size_t k = 0; k < count; ++k) {
        x.push_back(MakeData("normal", n + k, k + 1));
        sources.push_back({x.back().data() + k, k == 0 ? 1.0f : 0.3f * static_cast<float>(k)});
      }
      std::vector<float> expected(n);
      const MutableView sum{expected.data(), DType::kFloat32, n};
      ConvertScaled({sources[0].data, DType::kFloat32, n}, sources[0].scale, sum);
      for (size_t k = 1; k < count; ++k) {
        AddScaled({sources[k].data, DType::kFloat32, n}, sources[k].scale, sum);
      }
      std::vector<float> y(n, NAN);
      SumScaled(sources, y.data(), n);
      EXPECT_EQ(y, expected) << count << " of " << n;
    }
  }
}

TEST_P(FloatKernels, StreamWhatConvertingWrites) {
  const size_t most = 5000;
  const std::vector<float> x = MakeData("normal", most);
  for (size_t at = 0; at < 17; ++at) {
    for (const size_t n : {0, 1, 15, 16, 33, 4096}) {
      std::vector<float> expected(most, 7.0f);
      std::vector<float> y = expected;
      ConvertScaled({x.data() + 1, DType::kFloat32, n}, 0.7f,
                    {expected.data() + at, DType::kFloat32, n});
      StreamScaled(x.data() + 1, 0.7f, y.data() + at, n);
      EXPECT_EQ(y, expected) << n << " at " << at;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Targets, FloatKernels, ::testing::ValuesIn(KernelTargets()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace bdn
