#include "common/base/dtype.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace bdn {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kLargest = std::numeric_limits<float>::max();

bool HalfIsNan(uint16_t bits) { return (bits & 0x7fff) > 0x7c00; }
bool BrainIsNan(uint16_t bits) { return (bits & 0x7fff) > 0x7f80; }

// The value of a half, from its definition.
double HalfByDefinition(uint32_t bits) {
  const double sign = (bits & 0x8000) != 0 ? -1 : 1;
  const int exponent = static_cast<int>(bits >> 10 & 31);
  const int mantissa = static_cast<int>(bits & 1023);
  if (exponent == 0) return sign * std::ldexp(mantissa, -24);
  return sign * std::ldexp(1024 + mantissa, exponent - 25);
}

TEST(Half, EveryFiniteValueIsWhatItsBitsSay) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    if ((bits & 0x7c00) == 0x7c00) continue;
    ASSERT_EQ(HalfToFloat(static_cast<uint16_t>(bits)), HalfByDefinition(bits)) << bits;
  }
  EXPECT_TRUE(std::signbit(HalfToFloat(0x8000)));
  EXPECT_EQ(HalfToFloat(0x7c00), kInfinity);
  EXPECT_EQ(HalfToFloat(0xfc00), -kInfinity);
}

TEST(Half, EveryValueSurvivesARoundTrip) {
  for (uint32_t i = 0; i < 65536; ++i) {
    const auto bits = static_cast<uint16_t>(i);
    const float value = HalfToFloat(bits);
    if (HalfIsNan(bits)) {
      ASSERT_TRUE(std::isnan(value)) << i;
      ASSERT_TRUE(HalfIsNan(FloatToHalf(value))) << i;
    } else {
      ASSERT_EQ(FloatToHalf(value), bits) << i;
    }
  }
}

// Between each pair of neighbours: just below the middle, the middle, just above.
TEST(Half, RoundsToNearestEvenBetweenAllNeighbours) {
  for (uint32_t i = 0; i + 1 < 0x7c00; ++i) {
    const auto low = static_cast<uint16_t>(i);
    const auto high = static_cast<uint16_t>(i + 1);
    const float middle = (HalfToFloat(low) + HalfToFloat(high)) / 2;  // exact in float32
    ASSERT_EQ(FloatToHalf(std::nextafter(middle, 0.0f)), low) << i;
    ASSERT_EQ(FloatToHalf(middle), i % 2 == 0 ? low : high) << i;
    ASSERT_EQ(FloatToHalf(std::nextafter(middle, kInfinity)), high) << i;
    ASSERT_EQ(FloatToHalf(-middle), 0x8000 | (i % 2 == 0 ? low : high)) << i;
  }
}

TEST(Half, SaturatesWhatIsFiniteAndKeepsWhatIsNot) {
  for (const float large : {65504.0f, 65519.0f, 65520.0f, 1e6f, kLargest}) {
    EXPECT_EQ(FloatToHalf(large), 0x7bff) << large;
    EXPECT_EQ(FloatToHalf(-large), 0xfbff) << large;
  }
  EXPECT_EQ(FloatToHalf(kInfinity), 0x7c00);
  EXPECT_EQ(FloatToHalf(-kInfinity), 0xfc00);
  EXPECT_TRUE(HalfIsNan(FloatToHalf(std::numeric_limits<float>::quiet_NaN())));
}

TEST(BFloat16, EveryValueSurvivesARoundTrip) {
  for (uint32_t i = 0; i < 65536; ++i) {
    const auto bits = static_cast<uint16_t>(i);
    const float value = BFloat16ToFloat(bits);
    ASSERT_EQ(std::bit_cast<uint32_t>(value), i << 16);
    if (BrainIsNan(bits)) {
      ASSERT_TRUE(BrainIsNan(FloatToBFloat16(value))) << i;
    } else {
      ASSERT_EQ(FloatToBFloat16(value), bits) << i;
    }
  }
}

TEST(BFloat16, RoundsToNearestEvenBetweenAllNeighbours) {
  for (uint32_t i = 0; i + 1 < 0x7f80; ++i) {
    const auto low = static_cast<uint16_t>(i);
    const auto high = static_cast<uint16_t>(i + 1);
    const auto at = [&](uint32_t low_bits) { return std::bit_cast<float>(i << 16 | low_bits); };
    ASSERT_EQ(FloatToBFloat16(at(0x7fff)), low) << i;
    ASSERT_EQ(FloatToBFloat16(at(0x8000)), i % 2 == 0 ? low : high) << i;
    ASSERT_EQ(FloatToBFloat16(at(0x8001)), high) << i;
    ASSERT_EQ(FloatToBFloat16(-at(0x8001)), 0x8000 | high) << i;
  }
}

TEST(BFloat16, SaturatesWhatIsFiniteAndKeepsWhatIsNot) {
  EXPECT_EQ(FloatToBFloat16(kLargest), 0x7f7f);
  EXPECT_EQ(FloatToBFloat16(-kLargest), 0xff7f);
  EXPECT_EQ(FloatToBFloat16(kInfinity), 0x7f80);
  EXPECT_EQ(FloatToBFloat16(-kInfinity), 0xff80);
  // A NaN whose payload is all in the low half stays one.
  EXPECT_TRUE(BrainIsNan(FloatToBFloat16(std::bit_cast<float>(0x7f800001u))));
}

TEST(DType, NumbersNamesAndSizesArePinned) {
  const struct {
    int number;
    const char* name;
    size_t size;
    bool floating;
  } kTable[] = {{0, "float32", 4, true}, {1, "float16", 2, true}, {2, "bfloat16", 2, true},
                {3, "float64", 8, true}, {4, "uint8", 1, false},  {5, "int8", 1, false},
                {6, "int16", 2, false},  {7, "int32", 4, false},  {8, "int64", 8, false},
                {9, "bool", 1, false}};
  for (const auto& row : kTable) {
    const auto dtype = DTypeFromNumber(row.number);
    ASSERT_TRUE(dtype.ok());
    EXPECT_EQ(std::string(DTypeName(*dtype)), row.name);
    EXPECT_EQ(DTypeSize(*dtype), row.size);
    EXPECT_EQ(IsFloating(*dtype), row.floating);
  }
  for (const int number : {-1, kNumDTypes, 255}) {
    EXPECT_EQ(DTypeFromNumber(number).status().code(), absl::StatusCode::kInvalidArgument);
  }
}

TEST(View, SubStepsByElements) {
  std::vector<double> x = {0, 1, 2, 3};
  const MutableView view{x.data(), DType::kFloat64, x.size()};
  EXPECT_EQ(view.Sub(1, 2).data, x.data() + 1);
  EXPECT_EQ(ConstView(view).Sub(3, 1).n, 1u);
}

}  // namespace
}  // namespace bdn
