#include "device/codecs/device_feedback.h"

#include <span>
#include <vector>

#include "compressors/memory/error_feedback.h"
#include "device/device_budget.h"
#include "gtest/gtest.h"
#include "tests/device/device_cases.h"
#include "tests/device/device_link.h"

namespace bdn {
namespace {

DeviceMemory Upload(ComputeDevice& device, ByteSpan from) {
  DeviceMemory memory = DeviceMemory::Make(device, from.size()).value();
  EXPECT_TRUE(device.CopyToDevice({}, from, memory.get()).ok());
  EXPECT_TRUE(device.Synchronize({}).ok());
  return memory;
}
DeviceMemory Upload(ComputeDevice& device, const std::vector<float>& from) {
  return Upload(device, std::as_bytes(std::span(from)));
}

std::vector<float> Download(ComputeDevice& device, const DeviceMemory& from, size_t n) {
  std::vector<float> values(n);
  EXPECT_TRUE(device.CopyToHost({}, from.get(), std::as_writable_bytes(std::span(values))).ok());
  EXPECT_TRUE(device.Synchronize({}).ok());
  return values;
}

TEST(DeviceFeedback, UndoesAStepAsTheHostDoes) {
  for (const DeviceCase& device_case : DeviceCases()) {
    ComputeDevice* const device = device_case.device;
    for (const Memory memory : {Memory::kResidual, Memory::kMomentum}) {
      for (const size_t n : {size_t{0}, size_t{1}, size_t{9001}, size_t{5001}}) {
        SCOPED_TRACE(testing::Message() << device_case.label << ", " << n);
        // Some results of the largest values are clamped.
        const char* const kind = n == 5001 ? "largest" : "spread";
        LinkInput input = MakeInput(kind, n, DType::kBFloat16, memory);
        const std::vector<float> decoded = MakeData(n == 5001 ? "largest" : "normal", n, 8);
        const ConstView x = input.x.view();
        const DeviceMemory on_device =
            Upload(*device, {static_cast<const std::byte*>(x.data), n * DTypeSize(x.dtype)});
        const DeviceMemory sent = Upload(*device, decoded);
        const DeviceMemory residual = Upload(*device, input.residual);
        const DeviceMemory momentum = Upload(*device, input.momentum);
        const DeviceSource step{.x = on_device.get(),
                                .dtype = x.dtype,
                                .n = n,
                                .options = input.options,
                                .residual = static_cast<float*>(residual.get()),
                                .momentum = static_cast<float*>(momentum.get())};

        ASSERT_TRUE(UndoOnDevice(*device, {}, step, static_cast<const float*>(sent.get())).ok());
        Undo({x, input.options, input.residual.data(), input.momentum.data()}, decoded.data());

        EXPECT_TRUE(SameBits(Download(*device, residual, n), input.residual));
        EXPECT_TRUE(SameBits(Download(*device, momentum, input.momentum.size()), input.momentum));
      }
    }
  }
}

TEST(DeviceFeedback, OwesWhatWasSentAsTheHostDoes) {
  for (const DeviceCase& device_case : DeviceCases()) {
    SCOPED_TRACE(device_case.label);
    ComputeDevice* const device = device_case.device;
    constexpr size_t kElements = 5001;
    // Some of their sums overflow.
    const std::vector<float> decoded = MakeData("largest", kElements, 1);
    std::vector<float> expected = MakeData("largest", kElements, 2);
    const DeviceMemory sent = Upload(*device, decoded);
    const DeviceMemory residual = Upload(*device, expected);

    ASSERT_TRUE(OweOnDevice(*device, {}, static_cast<const float*>(sent.get()), kElements,
                            static_cast<float*>(residual.get()))
                    .ok());
    Owe(decoded, expected.data());

    EXPECT_TRUE(SameBits(Download(*device, residual, kElements), expected));
  }
}

}  // namespace
}  // namespace bdn
