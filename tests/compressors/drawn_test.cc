// Tests of points that the contract of all codecs leaves open: which elements randomk and blocks
// draw, and how their payloads add up.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "compressors/codec_spec.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/compressors/codec_inputs.h"

namespace bdn {
namespace {

using ::testing::HasSubstr;

std::shared_ptr<const Codec> CodecOf(const char* spec) { return ParseCodecSpec(spec)->codec; }

Draw DrawOf(Step step) { return Draw({.run_seed = 11, .step = step}); }

std::vector<std::byte> EncodeDrawn(const Codec& codec, const std::vector<float>& x,
                                   const Draw& draw) {
  std::vector<std::byte> out(codec.MaxEncodedBytes(x.size(), DType::kFloat32));
  const auto used = codec.Encode({x.data(), DType::kFloat32, x.size()}, 1.0f, draw, out);
  EXPECT_TRUE(used.ok()) << used.status();
  out.resize(used.value_or(0));
  return out;
}

// d of an array of ones: the elements drawn.
std::vector<float> Drawn(const Codec& codec, size_t n, const Draw& draw) {
  return DecodeToVector(codec, EncodeDrawn(codec, std::vector<float>(n, 1.0f), draw), n);
}

TEST(Drawn, EachElementComesAsOftenAsTheRatioSays) {
  constexpr int kDraws = 20000;
  for (const auto& [spec, ratio] : {std::pair{"randomk(ratio=0.1)", 0.1},
                                    {"randomk(ratio=0.013)", 0.013},
                                    {"randomk(ratio=0.7)", 0.7},
                                    {"blocks(ratio=0.25,size=4)", 0.25}}) {
    const auto codec = CodecOf(spec);
    for (const size_t n : {1, 2, 33, 90}) {
      std::vector<int> times(n);
      for (int step = 0; step < kDraws; ++step) {
        const auto drawn = Drawn(*codec, n, DrawOf(static_cast<Step>(step)));
        for (size_t i = 0; i < n; ++i) times[i] += drawn[i] == 1.0f ? 1 : 0;
      }
      const double deviation = std::sqrt(kDraws * ratio * (1 - ratio));
      for (const int count : times) EXPECT_NEAR(count, kDraws * ratio, 5 * deviation) << spec;
    }
  }
}

TEST(Drawn, NoElementComesTwice) {
  // As many different ones decode as values were sent.
  for (const char* spec : {"randomk(ratio=0.01)", "randomk(ratio=0.5)", "blocks(ratio=0.3,size=7)",
                           "randomk(ratio=1)"}) {
    const auto codec = CodecOf(spec);
    for (const size_t n : {1, 100, 1001, 70000}) {
      for (Step step = 0; step < 20; ++step) {
        const auto payload = EncodeDrawn(*codec, std::vector<float>(n, 1.0f), DrawOf(step));
        const auto drawn = DecodeToVector(*codec, payload, n);
        const auto ones = std::count(drawn.begin(), drawn.end(), 1.0f);
        EXPECT_EQ(static_cast<size_t>(ones), (payload.size() - 8) / 4) << spec;
      }
    }
  }
}

TEST(Drawn, TheDrawAloneChooses) {
  const auto codec = CodecOf("randomk(ratio=0.1)");
  EXPECT_TRUE(SameBits(Drawn(*codec, 5000, DrawOf(3)), Drawn(*codec, 5000, DrawOf(3))));
  EXPECT_FALSE(SameBits(Drawn(*codec, 5000, DrawOf(3)), Drawn(*codec, 5000, DrawOf(4))));
}

TEST(Drawn, BlocksComeWhole) {
  const auto drawn = Drawn(*CodecOf("blocks(ratio=0.3,size=64)"), 6400, DrawOf(1));
  for (size_t i = 0; i < drawn.size(); ++i) ASSERT_EQ(drawn[i], drawn[i / 64 * 64]);
}

TEST(Drawn, UnbiasedMeansTheMeanIsTheInput) {
  constexpr int kDraws = 20000;
  const auto codec = CodecOf("randomk(ratio=0.2,unbiased=true)");
  const auto x = MakeData("normal", 50);
  std::vector<double> mean(x.size());
  for (int step = 0; step < kDraws; ++step) {
    const auto payload = EncodeDrawn(*codec, x, DrawOf(static_cast<Step>(step)));
    const auto decoded = DecodeToVector(*codec, payload, x.size());
    for (size_t i = 0; i < x.size(); ++i) mean[i] += decoded[i] / kDraws;
  }
  for (size_t i = 0; i < x.size(); ++i) {
    EXPECT_NEAR(mean[i], x[i], 5 * 2 * std::abs(x[i]) / std::sqrt(kDraws));
  }
}

TEST(Drawn, ReadsOnlyWhatIsDrawn) {
  const auto codec = CodecOf("randomk(ratio=0.1)");
  const auto drawn = Drawn(*codec, 1000, DrawOf(2));
  std::vector<float> x(1000, 1.0f);
  std::vector<std::byte> out(codec->MaxEncodedBytes(1000, DType::kFloat32));
  const auto encode_with_nan_at = [&](float kind) {
    const auto at = std::find(drawn.begin() + 500, drawn.end(), kind) - drawn.begin();
    x[static_cast<size_t>(at)] = std::numeric_limits<float>::quiet_NaN();
    const auto status = codec->Encode({x.data(), DType::kFloat32, 1000}, 1.0f, DrawOf(2), out);
    return std::pair{std::string(status.status().message()), at};
  };
  EXPECT_EQ(encode_with_nan_at(0.0f).first, "");
  const auto [message, at] = encode_with_nan_at(1.0f);
  EXPECT_EQ(message, "element " + std::to_string(at) + " is nan");
}

TEST(Drawn, NegativeZeroIsSentAsZero) {
  const auto codec = CodecOf("randomk(ratio=1)");
  const auto payload = EncodeDrawn(*codec, {-0.0f, -0.0f}, DrawOf(0));
  EXPECT_TRUE(SameBits(DecodeToVector(*codec, payload, 2), {0.0f, 0.0f}));
}

TEST(DrawnSum, IsTheSumInOrder) {
  for (const char* spec : {"randomk(ratio=0.2)", "blocks(ratio=0.2,size=100)"}) {
    const auto codec = CodecOf(spec);
    const size_t n = 50000;
    std::vector<std::vector<std::byte>> payloads;
    for (uint64_t seed = 0; seed < 5; ++seed) {
      payloads.push_back(EncodeDrawn(*codec, MakeData("spread", n, seed), DrawOf(9)));
    }
    const std::vector<ByteSpan> in(payloads.begin(), payloads.end());
    std::vector<std::byte> out(codec->MaxEncodedBytes(n, DType::kFloat32));
    const auto used = codec->AddEncoded(in, 0.3f, n, DType::kFloat32, out);
    ASSERT_TRUE(used.ok());
    std::vector<float> sum(n);
    codec->DecodeSum(in, 1.0f, {sum.data(), DType::kFloat32, n});
    EXPECT_TRUE(SameBits(DecodeToVector(*codec, ByteSpan(out).first(*used), n), Times(0.3f, sum)));
  }
}

TEST(DrawnSum, RefusesPayloadsDrawnOtherwise) {
  const auto codec = CodecOf("randomk(ratio=0.2)");
  const std::vector<float> x(100, 1.0f);
  const auto a = EncodeDrawn(*codec, x, DrawOf(1));
  const auto b = EncodeDrawn(*codec, x, DrawOf(2));
  std::vector<std::byte> out(codec->MaxEncodedBytes(100, DType::kFloat32));
  const std::vector<ByteSpan> in = {a, a, b};
  const auto status = codec->AddEncoded(in, 1.0f, 100, DType::kFloat32, out).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("payload 2"));
}

TEST(DrawnSum, RefusesASumThatIsNotFinite) {
  const auto codec = CodecOf("randomk(ratio=1)");
  const auto largest = EncodeDrawn(*codec, {1.0f, std::numeric_limits<float>::max()}, DrawOf(1));
  std::vector<std::byte> out(codec->MaxEncodedBytes(2, DType::kFloat32));
  const std::vector<ByteSpan> in = {largest, largest};
  const auto status = codec->AddEncoded(in, 1.0f, 2, DType::kFloat32, out).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
}

TEST(DrawnHostile, RefusesTheSizeOfAnotherDraw) {
  // The last block is short: whether it is drawn shows in the size.
  const auto codec = CodecOf("blocks(ratio=0.5,size=8)");
  const std::vector<float> x(20, 1.0f);
  std::vector<std::byte> with;
  std::vector<std::byte> without;
  for (Step step = 0; with.empty() || without.empty(); ++step) {
    const auto payload = EncodeDrawn(*codec, x, DrawOf(step));
    (DecodeToVector(*codec, payload, 20)[19] == 1.0f ? with : without) = payload;
  }
  ASSERT_TRUE(codec->Validate(with, 20, DType::kFloat32).ok());
  std::memcpy(with.data(), without.data(), 8);
  EXPECT_FALSE(codec->Validate(with, 20, DType::kFloat32).ok());
}

TEST(DrawnHostile, RefusesAValueThatIsNotFinite) {
  const auto codec = CodecOf("randomk(ratio=1)");
  auto payload = EncodeDrawn(*codec, {1.0f, 2.0f}, DrawOf(1));
  const float bad = std::numeric_limits<float>::infinity();
  std::memcpy(payload.data() + 12, &bad, sizeof(bad));
  const auto status = codec->Validate(payload, 2, DType::kFloat32);
  EXPECT_THAT(std::string(status.message()), HasSubstr("element 1 is infinite"));
}

}  // namespace
}  // namespace bdn
