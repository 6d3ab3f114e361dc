#include "device/device_budget.h"

#include <algorithm>

#include "common/base/status.h"

namespace bdn {
namespace {

constexpr size_t kLeastFree = size_t{2} << 30;
constexpr size_t kFreeShare = 10;  // one part in so many stays free

}  // namespace

absl::Status DeviceBudget::CheckRoom(ComputeDevice& device, size_t bytes) const {
  if (max_bytes_ != 0) {
    // In this form the comparison cannot overflow, however large `bytes` is.
    if (bytes <= max_bytes_ && taken() <= max_bytes_ - bytes) return absl::OkStatus();
    return ResourceExhausted(
        "exchanges want %d bytes more of the memory of %s, have %d, and may have %d "
        "(max-device-bytes)",
        bytes, device.name(), taken(), max_bytes_);
  }
  // Without a number the bound depends on the memory that is free now, since others take some and
  // give some back.
  BDN_ASSIGN_OR_RETURN(const ComputeDevice::Memory memory, device.memory());
  const size_t stays_free = std::max(kLeastFree, memory.total_bytes / kFreeShare);
  if (memory.free_bytes >= stays_free && memory.free_bytes - stays_free >= bytes) {
    return absl::OkStatus();
  }
  return ResourceExhausted(
      "exchanges want %d bytes more of the memory of %s, of which %d are free, and leave %d of "
      "them to others (max-device-bytes says otherwise)",
      bytes, device.name(), memory.free_bytes, stays_free);
}

absl::StatusOr<void*> DeviceBudget::Allocate(ComputeDevice& device, size_t bytes) {
  // Between the check and the count no other caller may pass the check.
  MutexLock lock(&mu_);
  BDN_RETURN_IF_ERROR(CheckRoom(device, bytes));
  BDN_ASSIGN_OR_RETURN(void* const memory, device.Allocate(bytes));
  taken_.fetch_add(bytes, std::memory_order_relaxed);
  return memory;
}

void DeviceBudget::Free(ComputeDevice& device, void* memory, size_t bytes) {
  // The memory is freed before it is counted as free, so that no one relies on it too early.
  device.Free(memory);
  taken_.fetch_sub(bytes, std::memory_order_relaxed);
}

absl::StatusOr<DeviceMemory> DeviceMemory::Make(ComputeDevice& device, size_t bytes,
                                                DeviceBudget* budget) {
  DeviceMemory made;
  if (bytes == 0) return made;
  BDN_ASSIGN_OR_RETURN(
      made.memory_, budget == nullptr ? device.Allocate(bytes) : budget->Allocate(device, bytes));
  made.device_ = &device;
  made.budget_ = budget;
  made.bytes_ = bytes;
  return made;
}

DeviceMemory::~DeviceMemory() {
  if (memory_ == nullptr) return;
  if (budget_ == nullptr) {
    device_->Free(memory_);
  } else {
    budget_->Free(*device_, memory_, bytes_);
  }
}

}  // namespace bdn
