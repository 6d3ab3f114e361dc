#ifndef BANDONEON_TESTS_DEVICE_DEVICE_CASES_H_
#define BANDONEON_TESTS_DEVICE_DEVICE_CASES_H_

#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "device/compute_device.h"

// The devices that the suite of device codecs goes through. Each binary says which: host_cases.cc,
// or cuda_cases.cc for a machine with a GPU.

namespace bdn {

struct DeviceCase {
  std::string label;
  std::function<std::unique_ptr<ComputeDevice>()> make;
};
inline void PrintTo(const DeviceCase& device, std::ostream* out) { *out << device.label; }

std::vector<DeviceCase> DeviceCases();

}  // namespace bdn

#endif  // BANDONEON_TESTS_DEVICE_DEVICE_CASES_H_
