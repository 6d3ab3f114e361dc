// The promises of every device codec: the bytes, the link's state and the elements of its codec on
// the host, whatever the device.

#include "device/codecs/device_codec.h"

#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/compressors/codec_inputs.h"
#include "tests/compressors/golden_codecs.h"
#include "tests/device/device_cases.h"
#include "tests/device/device_link.h"

namespace bdn {
namespace {

constexpr DType kTypes[] = {DType::kFloat32, DType::kFloat16, DType::kBFloat16};
constexpr size_t kSizes[] = {0,   1,   7,   8,    9,    31,   32,   33,   96,
                             511, 512, 513, 1024, 4095, 4096, 4097, 20011};
constexpr float kInfinite = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

class DeviceCodecContract : public ::testing::TestWithParam<CodecCase> {
 protected:
  // The payload; empty where the encoding fails, with the same error everywhere.
  std::vector<uint8_t> ExpectSameEncoding(const LinkInput& input, const Draw& draw = TestDraw()) {
    LinkOutput on_host;
    const auto expected = EncodeOnHost(*codec_, input, draw, &on_host);
    for (const DeviceCase& open : DeviceCases()) {
      SCOPED_TRACE(open.label);
      LinkOutput on_device;
      const auto got = EncodeOnDevice(*open.device, *codec_, input, draw, &on_device);
      EXPECT_EQ(got.status(), expected.status());
      EXPECT_TRUE(SameBits(on_device.residual, on_host.residual));
      EXPECT_TRUE(SameBits(on_device.momentum, on_host.momentum));
      EXPECT_TRUE(SameBits(on_device.replica, on_host.replica));
      if (!expected.ok() || !got.ok()) continue;
      EXPECT_TRUE(*got == *expected) << got->size() << " bytes, expected " << expected->size();
    }
    return expected.value_or(std::vector<uint8_t>());
  }

  void ExpectSameDecoding(const std::vector<uint8_t>& payload, size_t n, float scale) {
    for (const DType dtype : kTypes) {
      ExpectSameDecodingTo(TypedArray::Of(dtype, std::vector<float>(n, kNaN)), payload, scale,
                           false);
    }
    ExpectSameDecodingTo(TypedArray::Of(DType::kFloat32, MakeData("signed_zeros", n, 5)), payload,
                         scale, true);
  }

  void ExpectSameDecodingTo(const TypedArray& y, const std::vector<uint8_t>& payload, float scale,
                            bool adds) {
    const TypedArray expected = DecodeOnHost(*codec_, payload, scale, adds, y);
    for (const DeviceCase& open : DeviceCases()) {
      EXPECT_TRUE(DecodeOnDevice(*open.device, *codec_, payload, scale, adds, y) == expected)
          << open.label << (adds ? " adds to " : " to ") << DTypeName(y.view().dtype);
    }
  }

  const std::shared_ptr<const Codec> codec_ = Parse(GetParam().spec);
};

TEST_P(DeviceCodecContract, HasTheHostsBytesMemoriesAndElementsAtEverySize) {
  for (const size_t n : kSizes) {
    for (const Memory memory : kMemories) {
      const DType dtype = kTypes[(n + static_cast<size_t>(memory)) % 3];
      SCOPED_TRACE(testing::Message()
                   << n << " of " << DTypeName(dtype) << ", memory " << static_cast<int>(memory));
      const auto payload = ExpectSameEncoding(MakeInput("normal", n, dtype, memory));
      ExpectSameDecoding(payload, n, -0.3f);
      if (HasFailure()) return;
    }
  }
}

TEST_P(DeviceCodecContract, HasTheHostsBytesForEveryKindOfData) {
  for (const std::string& kind : DataKinds()) {
    for (const Memory memory : kMemories) {
      for (const DType dtype : kTypes) {
        SCOPED_TRACE(testing::Message() << kind << " of " << DTypeName(dtype) << ", memory "
                                        << static_cast<int>(memory));
        const auto payload = ExpectSameEncoding(MakeInput(kind, 1057, dtype, memory));
        if (!payload.empty()) ExpectSameDecoding(payload, 1057, 1.0f);
        if (HasFailure()) return;
      }
    }
  }
}

// Sums and squares of elements overflow or vanish here, but the elements do not.
TEST_P(DeviceCodecContract, HasTheHostsBytesOfVeryLargeAndVerySmallNumbers) {
  for (const float scale : {1.5e38f, 1e20f, 1e-24f, 1e-30f, 1e-38f}) {
    for (const size_t n : {size_t{9}, size_t{3000}}) {
      SCOPED_TRACE(testing::Message() << n << " times " << scale);
      LinkInput input = MakeInput("normal", n, DType::kFloat32, Memory::kNone);
      input.options.scale = scale;
      ExpectSameDecoding(ExpectSameEncoding(input), n, 0.5f);
      if (HasFailure()) return;
    }
  }
}

// Beyond the blocks that codecs cut arrays into, and the sizes at which they sample otherwise.
TEST_P(DeviceCodecContract, HasTheHostsBytesOfLargeArrays) {
  const bool samples = std::string(GetParam().spec).find("sampled") != std::string::npos;
  for (const size_t n : {size_t{65537}, samples ? size_t{1} << 19 : size_t{131072}}) {
    SCOPED_TRACE(n);
    const auto payload =
        ExpectSameEncoding(MakeInput("spread", n, DType::kFloat32, Memory::kResidual));
    ExpectSameDecoding(payload, n, 1.0f);
  }
}

TEST_P(DeviceCodecContract, DrawsWhatTheHostDraws) {
  for (Step step = 0; step < 12; ++step) {
    const Draw draw({.run_seed = 3, .step = step});
    ExpectSameEncoding(MakeInput("spread", 6001, DType::kFloat32, Memory::kResidual), draw);
  }
}

TEST_P(DeviceCodecContract, RefusesWhatIsNotFiniteAndLeavesTheMemories) {
  for (const Memory memory : kMemories) {
    for (const float bad : {kNaN, kInfinite, -kInfinite}) {
      for (const size_t at : {size_t{0}, size_t{4500}, size_t{9000}}) {
        LinkInput input = MakeInput("normal", 9001, DType::kFloat32, memory);
        input.x.Set(at, bad);
        input.x.Set(9000, kNaN);
        SCOPED_TRACE(testing::Message()
                     << bad << " at " << at << ", memory " << static_cast<int>(memory));
        ExpectSameEncoding(input);
        if (HasFailure()) return;
      }
    }
  }
}

TEST_P(DeviceCodecContract, RefusesWhatTheScaleMakesInfinite) {
  LinkInput input = MakeInput("normal", 300, DType::kFloat32, Memory::kResidual);
  input.options.scale = 1e30f;
  input.x.Set(123, 1e30f);
  for (const DeviceCase& open : DeviceCases()) {
    LinkOutput after;
    const auto payload = EncodeOnDevice(*open.device, *codec_, input, TestDraw(), &after);
    EXPECT_EQ(payload.status(), absl::InvalidArgumentError("element 123 is infinite"));
    EXPECT_TRUE(SameBits(after.residual, input.residual)) << open.label;
  }
}

TEST_P(DeviceCodecContract, TakesThreeTypesAndNoOther) {
  const LinkInput input{.x = TypedArray(DType::kFloat64, 5)};
  LinkOutput after;
  const auto payload =
      EncodeOnDevice(*DeviceCases().front().device, *codec_, input, TestDraw(), &after);
  EXPECT_EQ(payload.status(), absl::InvalidArgumentError("codecs on a device take no float64"));
}

INSTANTIATE_TEST_SUITE_P(Codecs, DeviceCodecContract, testing::ValuesIn(CasesWithKernels()),
                         [](const auto& info) { return info.param.label; });

TEST(DeviceGolden, BytesAreAsCheckedIn) {
  size_t tried = 0;
  for (const auto& [spec, golden] : ReadGolden()) {
    if (!HasKernels(spec)) continue;
    ++tried;
    const auto codec = Parse(spec);
    for (const DeviceCase& open : DeviceCases()) {
      SCOPED_TRACE(spec + " on " + open.label);
      LinkOutput after;
      const auto encode = [&](const std::vector<float>& x) {
        const LinkInput input{.x = TypedArray::Of(DType::kFloat32, x)};
        return EncodeOnDevice(*open.device, *codec, input, TestDraw(), &after).value();
      };
      EXPECT_EQ(Hex(encode(GoldenCorners())), golden.corners);
      EXPECT_EQ(std::to_string(Fnv1a(encode(GoldenMany()))), golden.many_hash);
    }
  }
  EXPECT_GE(tried, 24u);
}

TEST(MakeDeviceCodec, RefusesACodecWithoutKernelsByItsSpec) {
  const auto made = MakeDeviceCodec(*Parse("sketch(columns=0.1)"));
  EXPECT_EQ(made.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(made.status().message()), testing::HasSubstr("sketch(columns=0.1)"));
}

}  // namespace
}  // namespace bdn
