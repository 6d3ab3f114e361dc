#include "compressors/memory/link_quality.h"

#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "compressors/codec_spec.h"
#include "compressors/memory/delta.h"
#include "gtest/gtest.h"

namespace bdn {
namespace {

std::shared_ptr<const Codec> CodecOf(const std::string& spec) {
  return ParseCodecSpec(spec).value().codec;
}

// A smooth array with both signs, of another size in each of its parts.
std::vector<float> Wave(size_t n, float phase) {
  std::vector<float> values(n);
  for (size_t i = 0; i < n; ++i) {
    values[i] = std::sin(0.37f * static_cast<float>(i) + phase) * static_cast<float>(1 + i % 7);
  }
  return values;
}

double SquareOf(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value * value;
  return sum;
}

// One step of a link: what it measures, and what the same sums are in float64.
struct Step {
  LinkQuality measured;
  LinkQuality expected;
};

Step TakeStep(const Codec& codec, FeedbackOptions options, size_t n) {
  const std::vector<float> g = Wave(n, 0.3f);
  std::vector<float> residual = Wave(n, 1.9f), momentum = Wave(n, 0.8f);
  std::vector<double> u(n), p(n), d(n), e(n);
  for (size_t i = 0; i < n; ++i) {
    u[i] = options.scale * g[i];
    if (options.momentum > 0) u[i] += options.momentum * (options.momentum * momentum[i] + u[i]);
    p[i] = u[i] + options.decay * residual[i];
  }
  const Feedback feedback{.g = {g.data(), DType::kFloat32, n},
                          .options = options,
                          .residual = residual.data(),
                          .momentum = momentum.data()};
  std::vector<std::byte> payload(codec.MaxEncodedBytes(n, DType::kFloat32));
  const size_t used = codec.EncodeFeedback(feedback, Draw({.run_seed = 5}), payload).value();
  payload.resize(used);
  std::vector<float> decoded(n);
  codec.Decode(payload, 1.0f, {decoded.data(), DType::kFloat32, n});
  for (size_t i = 0; i < n; ++i) {
    d[i] = decoded[i];
    e[i] = p[i] - d[i];
  }
  return {.measured = MeasureFeedback(codec, feedback, payload),
          .expected = {.input = SquareOf(u),
                       .offered = SquareOf(p),
                       .decoded = SquareOf(d),
                       .residual = SquareOf(e)}};
}

class LinkQualityOf : public testing::TestWithParam<std::string> {};

TEST_P(LinkQualityOf, EqualsTheSumsInFloat64) {
  const auto codec = CodecOf(GetParam());
  for (const size_t n : {1u, 9u, 4096u, 10000u}) {
    for (const float momentum : {0.0f, 0.9f}) {
      const Step step = TakeStep(*codec, {.scale = 0.5f, .decay = 0.75f, .momentum = momentum}, n);
      const LinkQuality &is = step.measured, &should = step.expected;
      EXPECT_NEAR(is.input, should.input, 1e-4 * should.input) << n;
      EXPECT_NEAR(is.offered, should.offered, 1e-4 * should.offered) << n;
      EXPECT_NEAR(is.decoded, should.decoded, 1e-4 * should.decoded) << n;
      EXPECT_NEAR(is.residual, should.residual, 1e-4 * should.offered) << n;
      EXPECT_NEAR(is.cosine(), should.cosine(), 1e-3) << n;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Codecs, LinkQualityOf,
                         testing::Values("none", "onebit(block=64)", "twobit", "topk(ratio=0.1)",
                                         "int4(hadamard=32)", "dither(levels=1,norm=l2)"));

TEST(LinkQuality, IsNothingOwedWhereNothingIsLeftOut) {
  const Step step = TakeStep(*CodecOf("none"), {}, 1000);
  EXPECT_EQ(step.measured.ratio(), 0);
  EXPECT_EQ(step.measured.owed_steps(), 0);
  EXPECT_NEAR(step.measured.cosine(), 1, 1e-6);
}

TEST(LinkQuality, OfTheLargestEntriesIsTheShareOfTheOthers) {
  const std::vector<float> g = {3, 0, 4, 0};
  std::vector<float> residual(4);
  const Feedback feedback{
      .g = {g.data(), DType::kFloat32, 4}, .options = {}, .residual = residual.data()};
  const auto codec = CodecOf("topk(ratio=0.25)");
  std::vector<std::byte> payload(codec->MaxEncodedBytes(4, DType::kFloat32));
  payload.resize(codec->EncodeFeedback(feedback, Draw(), payload).value());
  const LinkQuality quality = MeasureFeedback(*codec, feedback, payload);
  EXPECT_DOUBLE_EQ(quality.ratio(), 0.6);
  EXPECT_DOUBLE_EQ(quality.cosine(), 0.8);
  EXPECT_DOUBLE_EQ(quality.owed_steps(), 0.6);
}

TEST(LinkQuality, ExceedsOneWhereACodecAddsMoreThanItTakesAway) {
  const Step step = TakeStep(*CodecOf("dither(levels=1,norm=l2)"), {}, 10000);
  EXPECT_GT(step.measured.ratio(), 3);
}

TEST(LinkQuality, OfADeltaIsThatOfWhatTheReplicaLacks) {
  constexpr size_t n = 5000;
  const std::vector<float> before = Wave(n, 0.1f), moved = Wave(n, 2.2f);
  std::vector<float> after(n), replica = Wave(n, 0.1f);
  for (size_t i = 0; i < n; ++i) {
    after[i] = before[i] + 0.01f * moved[i];
    replica[i] += 0.002f;
  }
  std::vector<double> u(n), p(n), d(n), e(n);
  for (size_t i = 0; i < n; ++i) {
    u[i] = static_cast<double>(after[i]) - before[i];
    p[i] = static_cast<double>(after[i]) - replica[i];
  }
  const auto codec = CodecOf("twobit(block=64)");
  std::vector<std::byte> payload(codec->MaxEncodedBytes(n, DType::kFloat32));
  const ConstView w{after.data(), DType::kFloat32, n};
  payload.resize(EncodeDelta(*codec, w, Draw(), replica.data(), payload).value());
  for (size_t i = 0; i < n; ++i) {
    e[i] = static_cast<double>(after[i]) - replica[i];
    d[i] = p[i] - e[i];
  }
  const LinkQuality quality = MeasureDelta(*codec, w, before.data(), replica.data(), payload);
  EXPECT_NEAR(quality.input, SquareOf(u), 1e-4 * SquareOf(u));
  EXPECT_NEAR(quality.offered, SquareOf(p), 1e-4 * SquareOf(p));
  EXPECT_NEAR(quality.decoded, SquareOf(d), 1e-4 * SquareOf(d));
  EXPECT_NEAR(quality.residual, SquareOf(e), 1e-4 * SquareOf(p));
}

TEST(LinkQuality, SaysWhereThereWasNothing) {
  const LinkQuality nothing;
  EXPECT_EQ(nothing.ratio(), 0);
  EXPECT_EQ(nothing.cosine(), 0);
  EXPECT_EQ(nothing.owed_steps(), 0);
  const LinkQuality owed_alone{.input = 0, .offered = 4, .decoded = 0, .residual = 4};
  EXPECT_EQ(owed_alone.ratio(), 1);
  EXPECT_EQ(owed_alone.owed_steps(), std::numeric_limits<double>::infinity());
}

}  // namespace
}  // namespace bdn
