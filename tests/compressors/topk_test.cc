#include <cmath>
#include <vector>

#include "compressors/codec_spec.h"
#include "compressors/topk_select.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/compressors/codec_inputs.h"
#include "tests/reference/codec_reference.h"

namespace bdn {
namespace {

using ::testing::ElementsAre;

std::vector<uint32_t> Select(const std::vector<float>& x, size_t k) {
  EncodeSource source({x.data(), DType::kFloat32, x.size()}, 1.0f);
  Selection chosen(x.size(), k);
  EXPECT_TRUE(SelectTopK(source, k, false, &chosen).ok());
  return {chosen.index.data(), chosen.index.data() + chosen.size};
}

TEST(TopK, TakesTheLowerIndexWhereMagnitudesAreEqual) {
  EXPECT_THAT(Select({1, -2, 2, 3, -2, 2}, 3), ElementsAre(1, 2, 3));
  EXPECT_THAT(Select({0, -0.0f, 0}, 2), ElementsAre(0, 1));
}

TEST(TopK, SendsAtLeastOneAndAtMostAll) {
  const auto codec = ParseCodecSpec("topk(ratio=0.001)")->codec;
  EXPECT_EQ(codec->MaxEncodedBytes(0, DType::kFloat32), 4u);
  EXPECT_EQ(codec->MaxEncodedBytes(1, DType::kFloat32), 4u + 4 + 2 + 2 + 4);
  EXPECT_EQ(codec->MaxEncodedBytes(1001, DType::kFloat32), 4u + 4 + 2 * 2 + 2 * 4);
  const auto all = ParseCodecSpec("topk(ratio=1)")->codec;
  EXPECT_EQ(all->MaxEncodedBytes(3, DType::kFloat32), 4u + 4 + 3 * 2 + 2 + 3 * 4);
}

std::string RealSpec(double ratio) { return "topk(ratio=" + std::to_string(ratio); }

// The sample that guesses a threshold of 200000 elements looks at i mod 512 < 64. These arrays
// mislead it.
void ExpectReference(const std::vector<float>& x, double ratio) {
  const std::string spec = RealSpec(ratio) + ")";
  const auto codec = ParseCodecSpec(spec)->codec;
  const auto payload = EncodeToVector(*codec, ConstView{x.data(), DType::kFloat32, x.size()});
  EXPECT_TRUE(payload == reference::Encode(spec, x, {})) << ratio;
}

TEST(TopK, IsExactWhereTheSampleSeesOnlyTheLargest) {
  auto x = MakeData("normal", 200000);
  for (size_t i = 0; i < x.size(); ++i) {
    if (i % 512 < 64) x[i] = 100.0f + static_cast<float>(i);
  }
  for (const double ratio : {0.001, 0.01, 0.125}) ExpectReference(x, ratio);
}

TEST(TopK, IsExactWhereTheSampleSeesOnlyTheSmallest) {
  auto x = MakeData("normal", 200000);
  for (size_t i = 0; i < x.size(); ++i) {
    if (i % 512 < 64) x[i] = 0.0f;
  }
  for (const double ratio : {0.001, 0.01, 0.125}) ExpectReference(x, ratio);
}

TEST(TopK, IsExactAmongZeros) {
  // As a server's sum of one push has them: as many others as are sent, or fewer, or more.
  const size_t n = 200000, k = 2000;
  const auto normal = MakeData("normal", n);
  for (const size_t others : {size_t{0}, size_t{1}, k / 2, k - 1, k, k + 1, 5 * k, 20 * k}) {
    std::vector<float> x(n);
    for (size_t i = 0; i < n; i += 3) x[i] = -0.0f;
    for (size_t i = 0; i < others; ++i) x[(i * 7919 + 11) % n] = normal[i];
    ExpectReference(x, 0.01);
  }
}

TEST(TopK, IsExactWhereMagnitudesDifferInTheLastBitOnly) {
  std::vector<float> x(100000, 1.0f);
  for (size_t i = 0; i < x.size(); ++i) {
    if (i % 3 == 0) x[i] = std::nextafter(1.0f, i % 2 == 0 ? 2.0f : 0.0f);
  }
  for (const double ratio : {0.0001, 0.1, 0.2, 0.6}) ExpectReference(x, ratio);
}

TEST(TopK, IsExactOnSortedArrays) {
  std::vector<float> x(150000);
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i) - 40000.0f;
  for (const double ratio : {0.0001, 0.01, 0.3}) ExpectReference(x, ratio);
}

// The sample of n = 200000 has the elements with i mod 512 < 64.
TEST(TopK, SampledIsTheReferencesWhateverTheSampleSees) {
  for (const float sampled : {0.0f, 1.0f, 100.0f}) {
    auto x = MakeData("normal", 200000);
    for (size_t i = 0; i < x.size(); ++i) x[i] *= i % 512 < 64 ? sampled : 1.0f;
    for (const double ratio : {0.0001, 0.01, 0.3}) {
      const std::string spec = RealSpec(ratio) + ",select=sampled)";
      const auto codec = ParseCodecSpec(spec)->codec;
      const auto payload = EncodeToVector(*codec, {x.data(), DType::kFloat32, x.size()});
      EXPECT_TRUE(payload == reference::Encode(spec, x, {})) << spec << " " << sampled;
      EXPECT_TRUE(codec->Validate(AsBytes(payload), x.size(), DType::kFloat32).ok());
    }
  }
}

TEST(TopK, SampledSendsAboutTheRatio) {
  const auto x = MakeData("normal", 1 << 20);
  const auto codec = ParseCodecSpec("topk(ratio=0.01,select=sampled)")->codec;
  const auto payload = EncodeToVector(*codec, {x.data(), DType::kFloat32, x.size()});
  EXPECT_NEAR(static_cast<double>(reference::GetU32(payload, 0)), 0.01 * (1 << 20), 3000);
}

TEST(TopK, AddsNothingWhereNothingWasSent) {
  const auto codec = ParseCodecSpec("topk(ratio=0.1)")->codec;
  const std::vector<float> x = {0, 0, 5, 0, 0, 0, 0, 0, 0, 0};
  const auto payload = EncodeToVector(*codec, {x.data(), DType::kFloat32, x.size()});
  std::vector<float> y(10, -0.0f);
  codec->DecodeAdd(AsBytes(payload), 2.0f, {y.data(), DType::kFloat32, y.size()});
  EXPECT_EQ(y[2], 10.0f);
  EXPECT_TRUE(std::signbit(y[0]));
}

std::vector<uint8_t> GoodPayload(const Codec& codec) {
  const auto x = MakeData("normal", 100);
  return EncodeToVector(codec, {x.data(), DType::kFloat32, x.size()});
}

// Layout for n = 100, k = 3: k at 0, count at 4, indices at 8, 10 and 12, padding at 14, values
// at 16.
class TopKHostile : public ::testing::Test {
 protected:
  explicit TopKHostile(const std::string& spec = "topk(ratio=0.03)")
      : codec_(ParseCodecSpec(spec)->codec) {}
  void SetU16(size_t at, uint16_t value) { std::memcpy(payload_.data() + at, &value, 2); }
  void SetU32(size_t at, uint32_t value) { std::memcpy(payload_.data() + at, &value, 4); }
  std::string Refusal() const {
    const auto status = codec_->Validate(AsBytes(payload_), 100, DType::kFloat32);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  }
  const std::shared_ptr<const Codec> codec_;
  std::vector<uint8_t> payload_ = GoodPayload(*codec_);
};

TEST_F(TopKHostile, RefusesAnotherCount) {
  SetU32(0, 4);
  EXPECT_THAT(Refusal(), ::testing::HasSubstr("sends 4, expected 3"));
}
TEST_F(TopKHostile, RefusesABlockThatCountsMore) {
  SetU32(4, 0xffffffff);
  EXPECT_THAT(Refusal(), ::testing::HasSubstr("block 0 counts"));
}
TEST_F(TopKHostile, RefusesABlockThatCountsLess) {
  SetU32(4, 2);
  EXPECT_THAT(Refusal(), ::testing::HasSubstr("blocks count 2"));
}
TEST_F(TopKHostile, RefusesAnIndexPastTheEnd) {
  SetU16(12, 100);
  EXPECT_THAT(Refusal(), ::testing::HasSubstr("index 100 of block 0"));
}
TEST_F(TopKHostile, RefusesAnIndexTwice) {
  SetU16(8, 5);
  SetU16(10, 5);
  SetU16(12, 6);
  EXPECT_THAT(Refusal(), ::testing::HasSubstr("out of range or order"));
}
TEST_F(TopKHostile, RefusesPaddingThatIsNotZero) {
  SetU16(14, 1);
  EXPECT_THAT(Refusal(), ::testing::HasSubstr("padding"));
}
TEST_F(TopKHostile, RefusesAValueThatIsNotFinite) {
  SetU32(20, 0x7fc00000);
  EXPECT_THAT(Refusal(), ::testing::HasSubstr("element 1 is nan"));
}

// The same with two bits a value: the magnitudes at 16, the signs at 20, which are large at 24.
class TopKTwoBitHostile : public TopKHostile {
 protected:
  TopKTwoBitHostile() : TopKHostile("topk(ratio=0.03,values=twobit)") {}
};
TEST_F(TopKTwoBitHostile, RefusesAMagnitudeThatIsNotFinite) {
  SetU16(18, 0x7f80);
  EXPECT_THAT(Refusal(), ::testing::HasSubstr("magnitude 1 of the values"));
}
TEST_F(TopKTwoBitHostile, RefusesANegativeMagnitude) {
  SetU16(16, 0x8000);
  EXPECT_THAT(Refusal(), ::testing::HasSubstr("magnitude 0 of the values"));
}
TEST_F(TopKTwoBitHostile, RefusesBitsPastTheLast) {
  for (const size_t at : {20, 24}) {
    payload_ = GoodPayload(*codec_);
    SetU32(at, 8);
    EXPECT_THAT(Refusal(), ::testing::HasSubstr("past the last of 3"));
  }
}

TEST(TopK, TwoBitValuesAreTheMeansOfTheLowAndTheHighMagnitudes) {
  const std::vector<float> x = {0.5f, -2.0f, 4.0f, 0.0f, -12.0f, 2.0f, 16.0f, 0.25f};
  const auto codec = ParseCodecSpec("topk(ratio=0.625,values=twobit)")->codec;
  const auto payload = EncodeToVector(*codec, {x.data(), DType::kFloat32, x.size()});
  // |p| are 2, 4, 12, 2 and 16, their mean 7.2: low is 8 / 3 as bfloat16, high 14.
  EXPECT_THAT(DecodeToVector(*codec, AsBytes(payload), x.size()),
              ::testing::ElementsAre(0, -2.671875f, 2.671875f, 0, -14, 2.671875f, 14, 0));
}

}  // namespace
}  // namespace bdn
