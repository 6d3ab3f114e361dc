#ifndef BANDONEON_DEVICE_DEVICE_BUDGET_H_
#define BANDONEON_DEVICE_DEVICE_BUDGET_H_

#include <atomic>
#include <cstddef>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "device/compute_device.h"

namespace bdn {

// A bound on the device memory that exchanges take, which they share with the model that is trained
// there. Thread-safe.
class DeviceBudget {
 public:
  // Lets exchanges take at most `max_bytes`. With 0 they may take as much as leaves the larger of 2
  // GiB and a tenth of the device's memory free, for the model and for other users of the device.
  explicit DeviceBudget(size_t max_bytes) : max_bytes_(max_bytes) {}
  DeviceBudget(const DeviceBudget&) = delete;
  DeviceBudget& operator=(const DeviceBudget&) = delete;

  // Returns device memory, which counts from now on. Returns ResourceExhausted where it would pass
  // the bound, or where the device has none; then nothing is counted.
  absl::StatusOr<void*> Allocate(ComputeDevice& device, size_t bytes);
  void Free(ComputeDevice& device, void* memory, size_t bytes);
  // Returns the bytes that count. They are never more than `max_bytes`, if that is not 0, and
  // include all memory that callers hold.
  size_t taken() const { return taken_.load(std::memory_order_relaxed); }

 private:
  absl::Status CheckRoom(ComputeDevice& device, size_t bytes) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const size_t max_bytes_;
  Mutex mu_;                      // orders allocations, so that two callers at once see each other
  std::atomic<size_t> taken_{0};  // a count alone: it publishes nothing; grows under mu_
};

// A piece of device memory with one owner, which counts against a budget if it has one. Movable;
// empty after a move. Not thread-safe.
class DeviceMemory {
 public:
  DeviceMemory() = default;
  // Allocates memory. Returns ResourceExhausted where the device has no such memory, or the budget
  // forbids it. REQUIRES: `device` and `budget` outlive the result.
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

  // Returns the memory, or null for 0 bytes.
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
