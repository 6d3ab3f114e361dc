#ifndef BANDONEON_TESTS_DEVICE_DEVICE_CASES_H_
#define BANDONEON_TESTS_DEVICE_DEVICE_CASES_H_

#include <ostream>
#include <string>
#include <vector>

#include "device/compute_device.h"

// The devices that the suite of device codecs goes through. Each binary says which: host_cases.cc,
// or cuda_cases.cc for a machine with a GPU.

namespace bdn {

struct DeviceCase {
  std::string label;
  ComputeDevice* device = nullptr;
};
inline void PrintTo(const DeviceCase& device, std::ostream* out) { *out << device.label; }

// Opened at the first call, and kept as long as the process: to open a GPU, and to load all kernels there, takes
// longer than a test.
const std::vector<DeviceCase>& DeviceCases();

}  // namespace bdn

#endif  // BANDONEON_TESTS_DEVICE_DEVICE_CASES_H_
