// The work that threads of a device do at the same time, done at the same time: two blocks and two
// threads of each, on the host. Under a thread sanitizer (scripts/tsan) two of them that touch one
// word without an atomic operation or a meeting in between are an error; without one, the bytes
// show that they meet.

#include <limits>

#include "device/codecs/device_codec.h"
#include "device/host_device.h"
#include "gtest/gtest.h"
#include "tests/device/device_link.h"

namespace bdn {
namespace {

class DeviceCodecRaces : public ::testing::TestWithParam<CodecCase> {};

TEST_P(DeviceCodecRaces, NoTwoThreadsTouchAWordAtATime) {
  constexpr size_t kElements = 9001;  // several blocks, and an odd end
  HostDevice device(64, LaunchOrder::kTogether);
  const auto codec = Parse(GetParam().spec);
  for (const Memory memory : kMemories) {
    SCOPED_TRACE(static_cast<int>(memory));
    const LinkInput input = MakeInput("normal", kElements, DType::kFloat32, memory);
    LinkOutput on_host;
    LinkOutput on_device;
    const auto expected = EncodeOnHost(*codec, input, TestDraw(), &on_host);
    const auto payload = EncodeOnDevice(device, *codec, input, TestDraw(), &on_device);
    ASSERT_TRUE(payload.ok()) << payload.status();
    EXPECT_TRUE(*payload == *expected);
    EXPECT_TRUE(SameBits(on_device.residual, on_host.residual));
    EXPECT_TRUE(SameBits(on_device.replica, on_host.replica));

    const TypedArray y(DType::kFloat32, kElements);
    EXPECT_TRUE(DecodeOnDevice(device, *codec, *payload, 1.0f, true, y) ==
                DecodeOnHost(*codec, *payload, 1.0f, true, y));
    EXPECT_TRUE(DecodeOnDevice(device, *codec, *payload, 1.0f, false, y) ==
                DecodeOnHost(*codec, *payload, 1.0f, false, y));
  }
}

TEST_P(DeviceCodecRaces, NorWhereTheInputIsNotFinite) {
  HostDevice device(64, LaunchOrder::kTogether);
  LinkInput input = MakeInput("normal", 9001, DType::kFloat32, Memory::kNone);
  for (size_t i = 0; i < 9001; i += 7) input.x.Set(i, std::numeric_limits<float>::infinity());
  LinkOutput after;
  const auto codec = Parse(GetParam().spec);
  const auto expected = EncodeOnHost(*codec, input, TestDraw(), &after);
  EXPECT_EQ(EncodeOnDevice(device, *codec, input, TestDraw(), &after).status(), expected.status());
}

INSTANTIATE_TEST_SUITE_P(Codecs, DeviceCodecRaces, testing::ValuesIn(CasesWithKernels()),
                         [](const auto& info) { return info.param.label; });

}  // namespace
}  // namespace bdn
