#include "device/cuda_device.h"
#include "device/host_device.h"
#include "tests/device/device_cases.h"

namespace bdn {
namespace {

DeviceCase HostCase(const std::string& label, uint32_t threads, LaunchOrder order) {
  return {label, new HostDevice(threads, order)};
}

// The host behind CUDA's driver: what is between is tested so, too.
ComputeDevice* FakeCuda() {
  static const std::byte kImage[1] = {};
  return CudaDevice::Open({.threads = 128,
                           .library = BDN_FAKE_CUDA_DIR "/libfake_cuda.so",
                           .image = kImage,
                           .image_version = 13000})
      .value()
      .release();
}

}  // namespace

const std::vector<DeviceCase>& DeviceCases() {
  static const auto& cases =
      *new std::vector<DeviceCase>{HostCase("HostOfOneThread", 1, LaunchOrder::kForward),
                                   HostCase("HostOf32Backward", 32, LaunchOrder::kBackward),
                                   HostCase("HostOf37", 37, LaunchOrder::kForward),
                                   HostCase("HostOf256", 256, LaunchOrder::kForward),
                                   HostCase("HostOf256Backward", 256, LaunchOrder::kBackward),
                                   {"FakeCuda", FakeCuda()}};
  return cases;
}

}  // namespace bdn
