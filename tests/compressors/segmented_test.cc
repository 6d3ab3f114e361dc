#include "compressors/segmented.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "compressors/codec_spec.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/compressors/codec_inputs.h"

namespace bdn {
namespace {

using ::testing::HasSubstr;

SegmentedCodec Make(const std::string& spec, std::vector<size_t> elements,
                    DType dtype = DType::kFloat32) {
  return SegmentedCodec(ParseCodecSpec(spec)->codec, std::move(elements), dtype);
}

// The codec's payloads of all segments; nothing where one is absent.
std::vector<std::optional<ByteSpan>> PayloadsOf(const SegmentedCodec& codec, ByteSpan in) {
  SegmentedCodec::Segments segments(codec, in);
  std::vector<std::optional<ByteSpan>> payloads;
  for (size_t i = 0; i < codec.num_segments(); ++i) payloads.push_back(segments.Next());
  return payloads;
}

// A group of three tensors, the second of which may be absent.
class Segmented : public ::testing::TestWithParam<const char*> {
 protected:
  static constexpr size_t kSizes[] = {33, 7, 100};

  std::vector<SegmentedCodec::Input> Inputs(bool second_present) const {
    std::vector<SegmentedCodec::Input> inputs;
    for (size_t i = 0; i < 3; ++i) inputs.push_back({.x = data_[i].view(), .scale = 0.5f});
    inputs[1].present = second_present;
    return inputs;
  }
  std::vector<uint8_t> Encode(bool second_present) const {
    std::vector<uint8_t> out(codec_.MaxEncodedBytes());
    const auto used =
        codec_.Encode(Inputs(second_present), TestDraw(), std::as_writable_bytes(std::span(out)));
    EXPECT_TRUE(used.ok()) << used.status();
    out.resize(used.value_or(0));
    return out;
  }

  const SegmentedCodec codec_ = Make(GetParam(), {33, 7, 100});
  const std::vector<TypedArray> data_ = {
      TypedArray::Of(DType::kFloat32, MakeData("normal", 33, 1)),
      TypedArray::Of(DType::kFloat32, MakeData("normal", 7, 2)),
      TypedArray::Of(DType::kFloat32, MakeData("normal", 100, 3))};
};

TEST_P(Segmented, EachSegmentIsTheCodecsOwnPayload) {
  for (const bool second_present : {true, false}) {
    const auto payload = Encode(second_present);
    ASSERT_TRUE(codec_.Validate(AsBytes(payload)).ok());
    EXPECT_EQ(payload.size() % 4, 0u);
    const auto payloads = PayloadsOf(codec_, AsBytes(payload));
    for (size_t i = 0; i < 3; ++i) {
      EXPECT_EQ(codec_.Present(AsBytes(payload), i), i != 1 || second_present);
      ASSERT_EQ(payloads[i].has_value(), i != 1 || second_present);
      if (!payloads[i].has_value()) continue;
      std::vector<uint8_t> alone(codec_.codec().MaxEncodedBytes(kSizes[i], DType::kFloat32));
      alone.resize(*codec_.codec().Encode(data_[i].view(), 0.5f,
                                          TestDraw().Part(static_cast<uint32_t>(i)),
                                          std::as_writable_bytes(std::span(alone))));
      const ByteSpan expected = AsBytes(alone);
      EXPECT_TRUE(
          std::equal(payloads[i]->begin(), payloads[i]->end(), expected.begin(), expected.end()))
          << i;
    }
  }
}

TEST_P(Segmented, FeedbackLeavesAbsentSegmentsAlone) {
  std::vector<float> residual(codec_.num_elements(), 0.0f);
  std::fill_n(residual.begin() + 33, 7, 5.0f);
  std::vector<SegmentedCodec::FeedbackInput> inputs;
  for (size_t i = 0; i < 3; ++i) {
    inputs.push_back({{.g = data_[i].view(),
                       .options = {.scale = 0.5f},
                       .residual = residual.data() + codec_.segment_offset(i)},
                      i != 1});
  }
  std::vector<uint8_t> out(codec_.MaxEncodedBytes());
  const auto used =
      codec_.EncodeFeedback(inputs, TestDraw(), std::as_writable_bytes(std::span(out)));
  ASSERT_TRUE(used.ok());
  out.resize(*used);
  EXPECT_TRUE(out == Encode(/*second_present=*/false));
  const auto payloads = PayloadsOf(codec_, AsBytes(out));
  for (size_t i = 0; i < 3; ++i) {
    std::vector<float> decoded(kSizes[i], 0.0f);
    if (payloads[i].has_value()) {
      decoded = DecodeToVector(codec_.codec(), *payloads[i], kSizes[i], 1.0f);
    }
    for (size_t j = 0; j < kSizes[i]; ++j) {
      const float left = i == 1 ? 5.0f : 0.5f * data_[i].Get(j) - decoded[j];
      ASSERT_EQ(residual[codec_.segment_offset(i) + j], left);
    }
  }
}

TEST_P(Segmented, NonFiniteFeedbackChangesNoSegment) {
  std::vector<float> residual(codec_.num_elements(), 0.25f);
  const auto before = residual;
  TypedArray last = data_[2];
  last.Set(99, std::numeric_limits<float>::infinity());
  std::vector<SegmentedCodec::FeedbackInput> inputs;
  for (size_t i = 0; i < 3; ++i) {
    const TypedArray& g = i == 2 ? last : data_[i];
    inputs.push_back(
        {{.g = g.view(), .residual = residual.data() + codec_.segment_offset(i)}, true});
  }
  std::vector<std::byte> out(codec_.MaxEncodedBytes());
  EXPECT_EQ(codec_.EncodeFeedback(inputs, TestDraw(), out).status().message(),
            "segment 2: element 99 is infinite");
  EXPECT_TRUE(SameBits(residual, before));
}

TEST_P(Segmented, DecodeSumIsDecodeAddInOrder) {
  const auto all = Encode(true);
  const auto some = Encode(false);
  const std::vector<ByteSpan> payloads = {AsBytes(all), AsBytes(some), AsBytes(all)};
  std::vector<float> expected(codec_.num_elements(), 0.0f);
  for (size_t i = 0; i < 3; ++i) {
    const MutableView y{expected.data() + codec_.segment_offset(i), DType::kFloat32, kSizes[i]};
    for (const ByteSpan payload : payloads) {
      const auto of_segment = PayloadsOf(codec_, payload)[i];
      if (of_segment.has_value()) codec_.codec().DecodeAdd(*of_segment, 1.0f, y);
    }
  }
  std::vector<float> y(codec_.num_elements(), 9.0f);
  codec_.DecodeSum(payloads, {y.data(), DType::kFloat32, y.size()});
  EXPECT_TRUE(SameBits(y, expected));
}

TEST_P(Segmented, OneSegmentIsTheBarePayload) {
  const auto single = Make(GetParam(), {100});
  std::vector<uint8_t> out(single.MaxEncodedBytes());
  const std::vector<SegmentedCodec::Input> inputs = {{.x = data_[2].view()}};
  const auto used = single.Encode(inputs, TestDraw(), std::as_writable_bytes(std::span(out)));
  ASSERT_TRUE(used.ok());
  out.resize(*used);
  EXPECT_TRUE(out == EncodeToVector(single.codec(), data_[2].view()));
  EXPECT_TRUE(single.Validate(AsBytes(out)).ok());
  EXPECT_TRUE(single.Present(AsBytes(out), 0));
}

TEST_P(Segmented, HostileBytesAreRefusedOrSafe) {
  const auto good = Encode(/*second_present=*/true);
  const auto try_payload = [&](const std::vector<uint8_t>& bytes) {
    const std::vector<uint8_t> exact(bytes);
    if (!codec_.Validate(AsBytes(exact)).ok()) return false;
    const auto payloads = PayloadsOf(codec_, AsBytes(exact));
    for (size_t i = 0; i < 3; ++i) {
      if (!payloads[i].has_value()) continue;
      std::vector<float> y(kSizes[i]);
      const MutableView view{y.data(), DType::kFloat32, y.size()};
      codec_.codec().DecodeAdd(*payloads[i], 1.0f, view);
      codec_.codec().Decode(*payloads[i], 1.0f, view);
    }
    return true;
  };
  ASSERT_TRUE(try_payload(good));
  for (size_t size = 0; size < good.size(); ++size) {
    EXPECT_FALSE(try_payload({good.begin(), good.begin() + static_cast<ptrdiff_t>(size)}));
  }
  for (size_t extra = 1; extra <= 8; ++extra) {
    auto longer = good;
    longer.resize(good.size() + extra);
    EXPECT_FALSE(try_payload(longer));
  }
  for (size_t bit = 0; bit < 8 * good.size(); ++bit) {
    auto flipped = good;
    flipped[bit / 8] ^= static_cast<uint8_t>(1u << (bit % 8));
    const bool accepted = try_payload(flipped);
    if (bit < 8 * 12) {
      EXPECT_FALSE(accepted) << "the table's bit " << bit;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Codecs, Segmented,
                         ::testing::Values("none", "fp16", "bf16", "onebit", "onebit(block=32)",
                                           "twobit(block=32)", "onebit(block=32,scale=bf16)",
                                           "topk(ratio=0.1)"));

// Bytes of another process may change once they were found valid.
TEST_P(Segmented, WhatBoundsItselfIsDecodedSafelyWhateverTheTableBecomes) {
  if (!codec_.bounds_itself()) return;
  for (const bool second_present : {true, false}) {
    const std::vector<uint8_t> good = Encode(second_present);
    for (const uint32_t entry : {0u, 1u, 28u, 29u, 4000u, 0x7fffffffu, 0xfffffff0u, 0xffffffffu}) {
      for (int entries = 1; entries < 8; ++entries) {
        std::vector<uint8_t> changed = good;  // of exactly the right size
        for (int i = 0; i < 3; ++i) {
          if (entries & (1 << i)) std::memcpy(changed.data() + 4 * i, &entry, sizeof(entry));
        }
        const std::vector<ByteSpan> payloads = {AsBytes(good), AsBytes(changed)};
        std::vector<float> y(140);
        codec_.DecodeSum(payloads, {y.data(), DType::kFloat32, y.size()});
        codec_.DecodeAddTransformed(payloads, {y.data(), DType::kFloat32, y.size()});
        const auto segments = PayloadsOf(codec_, payloads[1]);
        for (size_t i = 0; i < 3; ++i) {
          if (!segments[i].has_value()) continue;
          std::vector<float> segment(kSizes[i]);
          codec_.codec().Decode(*segments[i], 1.0f, {segment.data(), DType::kFloat32, kSizes[i]});
        }
        if (!codec_.codec().linear()) continue;
        std::vector<std::byte> out(codec_.MaxEncodedBytes());
        codec_.AddEncoded(payloads, 1.0f, out).IgnoreError();
      }
    }
  }
}

TEST(SegmentedCodec, OffsetsFollowTheSizes) {
  const auto codec = Make("onebit", {33, 0, 100});
  EXPECT_EQ(codec.num_segments(), 3u);
  EXPECT_EQ(codec.num_elements(), 133u);
  EXPECT_EQ(codec.segment_offset(2), 33u);
}

TEST(SegmentedCodec, RefusesAPayloadWithNothingIn) {
  const auto codec = Make("none", {4, 4});
  EXPECT_THAT(std::string(codec.Validate(AsBytes(std::vector<uint8_t>(8, 0xff))).message()),
              HasSubstr("all 2 segments are absent"));
}

TEST(SegmentedCodec, ChecksThePadding) {
  const auto codec = Make("fp16", {1, 2});
  std::vector<uint8_t> payload = {2, 0, 0, 0, 4, 0, 0, 0, /*first*/ 0, 0x3c, 0, 0, 0, 0, 0, 0};
  EXPECT_TRUE(codec.Validate(AsBytes(payload)).ok());
  payload[10] = 1;
  EXPECT_THAT(std::string(codec.Validate(AsBytes(payload)).message()), HasSubstr("padded"));
}

TEST(SegmentedCodec, NamesTheSegmentOfANonFiniteElement) {
  const auto codec = Make("onebit", {4, 4});
  const std::vector<float> good(4, 1.0f);
  std::vector<float> bad(4, 1.0f);
  bad[3] = std::numeric_limits<float>::quiet_NaN();
  const std::vector<SegmentedCodec::Input> inputs = {{.x = {good.data(), DType::kFloat32, 4}},
                                                     {.x = {bad.data(), DType::kFloat32, 4}}};
  std::vector<std::byte> out(codec.MaxEncodedBytes());
  EXPECT_EQ(codec.Encode(inputs, Draw(), out).status().message(), "segment 1: element 3 is nan");
}

TEST(SegmentedCodec, CarriesFloat64WithoutAlignment) {
  const auto codec = Make("none", {1, 2}, DType::kFloat64);
  const std::vector<double> x = {1e-300, 2.5, -3e300};
  const std::vector<SegmentedCodec::Input> inputs = {{.x = {x.data(), DType::kFloat64, 1}},
                                                     {.x = {x.data() + 1, DType::kFloat64, 2}}};
  std::vector<std::byte> out(codec.MaxEncodedBytes());
  ASSERT_TRUE(codec.Encode(inputs, Draw(), out).ok());
  ASSERT_TRUE(codec.Validate(out).ok());
  std::vector<double> y(2);
  codec.codec().Decode(PayloadsOf(codec, out)[1].value(), 1.0f, {y.data(), DType::kFloat64, 2});
  EXPECT_EQ(y, (std::vector<double>{2.5, -3e300}));
}

}  // namespace
}  // namespace bdn
