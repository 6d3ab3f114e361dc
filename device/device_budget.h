#ifndef BANDONEON_DEVICE_DEVICE_BUDGET_H_
#define BANDONEON_DEVICE_DEVICE_BUDGET_H_

#include <atomic>
#include <cstddef>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "device/compute_device.h"

namespace bdn {

// A bound on what exchanges take of a device's memory, which they share with the model that is trained there.
// Thread-safe.
class DeviceBudget {
 public:
  // At most `max_bytes`. 0: as much as leaves the larger of 2 GiB and a tenth of the device's memory free, for
  // the model and whoever else uses the device.
  explicit DeviceBudget(size_t max_bytes) : max_bytes_(max_bytes) {}
  DeviceBudget(const DeviceBudget&) = delete;
  DeviceBudget& operator=(const DeviceBudget&) = delete;

  // Counts bytes that are about to be allocated. ResourceExhausted: they would pass the bound; nothing is
  // counted.
  absl::Status Take(ComputeDevice& device, size_t bytes);
  void GiveBack(size_t bytes) { taken_.fetch_sub(bytes, std::memory_order_relaxed); }
  size_t taken() const { return taken_.load(std::memory_order_relaxed); }

 private:
  absl::Status CheckRoom(ComputeDevice& device, size_t bytes, size_t taken) const;

  const size_t max_bytes_;
  std::atomic<size_t> taken_{0};  // a count alone: it publishes nothing
};

// Device memory of one owner, which counts against a budget if it has one. Movable; empty after it.
class DeviceMemory {
 public:
  DeviceMemory() = default;
  // REQUIRES: `device` and `budget` outlive it. ResourceExhausted: the device has no such memory, or the
  // budget forbids it.
  static absl::StatusOr<DeviceMemory> Make(ComputeDevice& device, size_t bytes,
                                           DeviceBudget* budget = nullptr);
  ~DeviceMemory();
  DeviceMemory(DeviceMemory&& other) noexcept { *this = std::move(other); }
  DeviceMemory& operator=(DeviceMemory&& other) noexcept {
    std::swap(device_, other.device_);
    std::swap(budget_, other.budget_);
    std::swap(memory_, other.memory_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }

  // Null where it was made of 0 bytes.
  void* get() const { return memory_; }
  size_t size() const { return bytes_; }

 private:
  ComputeDevice* device_ = nullptr;
  DeviceBudget* budget_ = nullptr;
  void* memory_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace bdn

#endif  // BANDONEON_DEVICE_DEVICE_BUDGET_H_
