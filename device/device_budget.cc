#include "device/device_budget.h"

#include <algorithm>

#include "common/base/status.h"

namespace bdn {
namespace {

constexpr size_t kLeastFree = size_t{2} << 30;
constexpr size_t kFreeShare = 10;  // one part in so many stays free

}  // namespace

absl::Status DeviceBudget::CheckRoom(ComputeDevice& device, size_t bytes, size_t taken) const {
  if (max_bytes_ != 0) {
    if (bytes <= max_bytes_ && taken <= max_bytes_ - bytes) return absl::OkStatus();
    return ResourceExhausted(
        "exchanges want %d bytes more of the memory of %s, have %d, and may have %d (max-device-bytes)",
        bytes, device.name(), taken, max_bytes_);
  }
  BDN_ASSIGN_OR_RETURN(const ComputeDevice::Memory memory, device.memory());
  const size_t stays_free = std::max(kLeastFree, memory.total_bytes / kFreeShare);
  if (memory.free_bytes >= stays_free && memory.free_bytes - stays_free >= bytes) {
    return absl::OkStatus();
  }
  return ResourceExhausted(
      "exchanges want %d bytes more of the memory of %s, of which %d are free, and leave %d of them to "
      "others (max-device-bytes says otherwise)",
      bytes, device.name(), memory.free_bytes, stays_free);
}

absl::Status DeviceBudget::Take(ComputeDevice& device, size_t bytes) {
  // Counted first, so that two that ask at once are both seen.
  const size_t taken = taken_.fetch_add(bytes, std::memory_order_relaxed);
  const absl::Status has_room = CheckRoom(device, bytes, taken);
  if (!has_room.ok()) GiveBack(bytes);
  return has_room;
}

absl::StatusOr<DeviceMemory> DeviceMemory::Make(ComputeDevice& device, size_t bytes,
                                                DeviceBudget* budget) {
  DeviceMemory made;
  if (bytes == 0) return made;
  if (budget != nullptr) BDN_RETURN_IF_ERROR(budget->Take(device, bytes));
  const absl::StatusOr<void*> memory = device.Allocate(bytes);
  if (!memory.ok()) {
    if (budget != nullptr) budget->GiveBack(bytes);
    return memory.status();
  }
  made.device_ = &device;
  made.budget_ = budget;
  made.memory_ = *memory;
  made.bytes_ = bytes;
  return made;
}

DeviceMemory::~DeviceMemory() {
  if (memory_ == nullptr) return;
  device_->Free(memory_);
  if (budget_ != nullptr) budget_->GiveBack(bytes_);
}

}  // namespace bdn
