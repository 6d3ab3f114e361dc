// Once a thread has used a codec, nothing on the hot path allocates. The linker sends the
// allocation functions to the ones below (tests/compressors/CMakeLists.txt), and `new` ends there
// too.

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <new>
#include <string>
#include <tuple>
#include <vector>

#include "compressors/codec_spec.h"
#include "compressors/memory/delta.h"
#include "compressors/segmented.h"
#include "gtest/gtest.h"
#include "tests/compressors/allocation_count.h"
#include "tests/compressors/codec_cases.h"
#include "tests/compressors/codec_inputs.h"

namespace bdn {
namespace {

// More than a block of topk, and no multiple of anything.
constexpr size_t kN = 70001;

template <typename Operation>
void ExpectNoAllocation(const char* name, const Operation& operation) {
  operation();
  const size_t before = AllocationCount();
  operation();
  EXPECT_EQ(AllocationCount(), before) << name;
}

TEST(Allocations, AreCounted) {
  const size_t before = AllocationCount();
  const auto number = std::make_unique<int>(1);
  EXPECT_EQ(AllocationCount() - before, 1u);
  const std::unique_ptr<void, decltype(&std::free)> bytes(std::aligned_alloc(64, 64), &std::free);
  EXPECT_EQ(AllocationCount() - before, 2u);
}

class NoAllocation : public ::testing::TestWithParam<std::tuple<CodecCase, DType>> {
 protected:
  const std::shared_ptr<const Codec> codec_ = ParseCodecSpec(std::get<0>(GetParam()).spec)->codec;
  const DType dtype_ = std::get<1>(GetParam());
  const TypedArray x_ = TypedArray::Of(dtype_, MakeData("normal", kN));
  std::vector<float> residual_ = std::vector<float>(kN);
  std::vector<float> momentum_ = std::vector<float>(kN);
  std::vector<float> sum_ = std::vector<float>(kN);
  const MutableView y_{sum_.data(), DType::kFloat32, kN};
  std::vector<std::byte> out_ = std::vector<std::byte>(codec_->MaxEncodedBytes(kN, dtype_));
};

TEST_P(NoAllocation, WhileItEncodes) {
  ExpectNoAllocation("Encode",
                     [&] { ASSERT_TRUE(codec_->Encode(x_.view(), 0.37f, TestDraw(), out_).ok()); });
  ExpectNoAllocation("EncodeFeedback", [&] {
    ASSERT_TRUE(codec_
                    ->EncodeFeedback({.g = x_.view(),
                                      .options = {.momentum = 0.9f},
                                      .residual = residual_.data(),
                                      .momentum = momentum_.data()},
                                     TestDraw(), out_)
                    .ok());
  });
  ExpectNoAllocation("EncodeDelta", [&] {
    ASSERT_TRUE(EncodeDelta(*codec_, x_.view(), TestDraw(), residual_.data(), out_).ok());
  });
}

TEST_P(NoAllocation, WhileItDecodes) {
  const auto bytes = EncodeToVector(*codec_, x_.view());
  const ByteSpan payload = AsBytes(bytes);
  const std::vector<ByteSpan> payloads(3, payload);
  TypedArray typed(dtype_, kN);
  ExpectNoAllocation("Validate", [&] { ASSERT_TRUE(codec_->Validate(payload, kN, dtype_).ok()); });
  ExpectNoAllocation("Decode", [&] { codec_->Decode(payload, 0.37f, typed.view()); });
  ExpectNoAllocation("DecodeAdd", [&] { codec_->DecodeAdd(payload, 0.37f, y_); });
  ExpectNoAllocation("DecodeAddTransformed",
                     [&] { codec_->DecodeAddTransformed(payload, 0.37f, y_); });
  ExpectNoAllocation("DecodeSum", [&] { codec_->DecodeSum(payloads, 0.37f, y_); });
  if (!codec_->linear()) return;
  ExpectNoAllocation("AddEncoded", [&] {
    ASSERT_TRUE(codec_->AddEncoded(payloads, 0.37f, kN, dtype_, out_).ok());
  });
}

// Three tensors in one key, the second of which had no gradient.
TEST_P(NoAllocation, WhileSegmentsAreEncodedAndDecoded) {
  constexpr size_t kSegment = kN / 3;
  const SegmentedCodec segmented(codec_, {kSegment, kSegment, kSegment}, dtype_);
  std::vector<std::byte> encoded(segmented.MaxEncodedBytes());
  std::vector<SegmentedCodec::Input> inputs;
  std::vector<SegmentedCodec::FeedbackInput> steps;
  for (size_t i = 0; i < 3; ++i) {
    const ConstView x = x_.view().Sub(i * kSegment, kSegment);
    inputs.push_back({.x = x, .present = i != 1});
    steps.push_back(
        {.feedback = {.g = x, .residual = residual_.data() + i * kSegment}, .present = i != 1});
  }
  size_t used = 0;
  ExpectNoAllocation("EncodeFeedback", [&] {
    ASSERT_TRUE(segmented.EncodeFeedback(steps, TestDraw(), encoded).ok());
  });
  ExpectNoAllocation("Encode", [&] {
    const auto size = segmented.Encode(inputs, TestDraw(), encoded);
    ASSERT_TRUE(size.ok());
    used = *size;
  });
  const ByteSpan payload = ByteSpan(encoded).first(used);
  const std::vector<ByteSpan> payloads(3, payload);
  const MutableView y = y_.Sub(0, segmented.num_elements());
  ExpectNoAllocation("Validate", [&] { ASSERT_TRUE(segmented.Validate(payload).ok()); });
  ExpectNoAllocation("DecodeSum", [&] { segmented.DecodeSum(payloads, y); });
  if (!codec_->linear()) return;
  std::vector<std::byte> sum(segmented.MaxEncodedBytes());
  ExpectNoAllocation("AddEncoded",
                     [&] { ASSERT_TRUE(segmented.AddEncoded(payloads, 0.37f, sum).ok()); });
}

INSTANTIATE_TEST_SUITE_P(Codecs, NoAllocation,
                         ::testing::Combine(::testing::ValuesIn(kCodecs),
                                            ::testing::Values(DType::kFloat32, DType::kFloat16)),
                         [](const auto& info) {
                           return std::string(std::get<0>(info.param).label) + "_" +
                                  DTypeName(std::get<1>(info.param));
                         });

}  // namespace
}  // namespace bdn
