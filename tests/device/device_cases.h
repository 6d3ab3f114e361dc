#ifndef BANDONEON_TESTS_DEVICE_DEVICE_CASES_H_
#define BANDONEON_TESTS_DEVICE_DEVICE_CASES_H_

#include <ostream>
#include <string>
#include <vector>

#include "device/compute_device.h"

// The devices that go through the suite of device codecs. Each binary names its own: host_cases.cc,
// or cuda_cases.cc for a machine with a GPU.

namespace bdn {

// A device under test.
struct DeviceCase {
  std::string label;
  ComputeDevice* device = nullptr;
};
inline void PrintTo(const DeviceCase& device, std::ostream* out) { *out << device.label; }

// Returns the devices, which are opened at the first call and kept as long as the process: to open
// a GPU and load all kernels takes longer than a test.
const std::vector<DeviceCase>& DeviceCases();

}  // namespace bdn

#endif  // BANDONEON_TESTS_DEVICE_DEVICE_CASES_H_
