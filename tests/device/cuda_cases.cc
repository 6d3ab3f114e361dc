// The suite of device codecs on this machine's GPU. Without one it says so, and its exit status is
// that of tests that were skipped.

#include <cstdio>

#include "device/cuda_device.h"
#include "gtest/gtest.h"
#include "tests/device/device_cases.h"

namespace bdn {
namespace {

DeviceCase CudaCase(const std::string& label, uint32_t threads) {
  return {label, CudaDevice::Open({.threads = threads}).value().release()};
}

}  // namespace

const std::vector<DeviceCase>& DeviceCases() {
  static const auto& cases = *new std::vector<DeviceCase>{
      CudaCase("CudaOf256", 256), CudaCase("CudaOf96", 96), CudaCase("CudaOf1", 1)};
  return cases;
}

}  // namespace bdn

int main(int argc, char** argv) {
  constexpr int kSkipped = 77;
  testing::InitGoogleTest(&argc, argv);
  const bool only_lists = testing::GTEST_FLAG(list_tests);
  const auto device = bdn::CudaDevice::Open();
  const absl::Status status = device.ok() ? (*device)->kernels() : device.status();
  if (!status.ok() && !only_lists) {
    std::printf("no GPU for codecs here, nothing was run: %s\n",
                std::string(status.message()).c_str());
    return kSkipped;
  }
  return RUN_ALL_TESTS();
}
