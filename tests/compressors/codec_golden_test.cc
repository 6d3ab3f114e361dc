// The bytes of every codec, pinned. A change here is a change of the wire format.

#include <cstdint>
#include <string>
#include <vector>

#include "compressors/codec_spec.h"
#include "gtest/gtest.h"
#include "tests/compressors/codec_inputs.h"
#include "tests/compressors/golden_codecs.h"

namespace bdn {
namespace {

class CodecGolden : public ::testing::TestWithParam<std::string> {};

TEST_P(CodecGolden, BytesAreAsCheckedIn) {
  const auto golden = ReadGolden();
  ASSERT_TRUE(golden.count(GetParam()) == 1) << "no golden bytes for " << GetParam();
  const Golden& entry = golden.at(GetParam());
  const auto codec = ParseCodecSpec(GetParam())->codec;
  const std::vector<float>& x = GoldenCorners();
  const auto corners = EncodeToVector(*codec, {x.data(), DType::kFloat32, x.size()});
  const auto many = GoldenMany();
  const auto many_payload = EncodeToVector(*codec, {many.data(), DType::kFloat32, many.size()});
  EXPECT_EQ(Hex(corners), entry.corners);
  EXPECT_EQ(std::to_string(Fnv1a(many_payload)), entry.many_hash);
}

TEST_P(CodecGolden, CheckedInBytesStillDecode) {
  const auto codec = ParseCodecSpec(GetParam())->codec;
  const auto payload = Unhex(ReadGolden()[GetParam()].corners);
  const size_t n = GoldenCorners().size();
  ASSERT_TRUE(codec->Validate(AsBytes(payload), n, DType::kFloat32).ok());
  const auto decoded = DecodeToVector(*codec, AsBytes(payload), n);
  EXPECT_EQ(Hex(EncodeToVector(*codec, {decoded.data(), DType::kFloat32, decoded.size()})).size(),
            2 * payload.size());
}

// Every line of the file, so that none is there in vain.
std::vector<std::string> SpecsOfTheFile() {
  std::vector<std::string> specs;
  for (const auto& [spec, golden] : ReadGolden()) specs.push_back(spec);
  return specs;
}

INSTANTIATE_TEST_SUITE_P(Codecs, CodecGolden, ::testing::ValuesIn(SpecsOfTheFile()));

}  // namespace
}  // namespace bdn
