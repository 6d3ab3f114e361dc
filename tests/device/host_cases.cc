#include "device/host_device.h"
#include "tests/device/device_cases.h"

namespace bdn {
namespace {

DeviceCase HostCase(const std::string& label, uint32_t threads, LaunchOrder order) {
  return {label, [=] { return std::make_unique<HostDevice>(threads, order); }};
}

}  // namespace

std::vector<DeviceCase> DeviceCases() {
  return {HostCase("HostOfOneThread", 1, LaunchOrder::kForward),
          HostCase("HostOf32Backward", 32, LaunchOrder::kBackward),
          HostCase("HostOf37", 37, LaunchOrder::kForward),
          HostCase("HostOf256", 256, LaunchOrder::kForward),
          HostCase("HostOf256Backward", 256, LaunchOrder::kBackward)};
}

}  // namespace bdn
