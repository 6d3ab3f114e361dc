#ifndef BANDONEON_DEVICE_HOST_DEVICE_H_
#define BANDONEON_DEVICE_HOST_DEVICE_H_

#include <string>

#include "device/compute_device.h"
#include "device/host_launcher.h"

namespace bdn {

// The host in the place of a device. Its memory is the heap, and the work that is put into a stream
// is done before the call returns. It serves machines without an accelerator, and tests that
// kernels leave the same bytes whatever the number and the order of threads. Thread-safe.
class HostDevice final : public ComputeDevice {
 public:
  // REQUIRES: threads is from 1 to kMostThreads.
  explicit HostDevice(uint32_t threads = device_kernels::kMostThreads,
                      LaunchOrder order = LaunchOrder::kForward)
      : threads_(threads), order_(order) {}

  std::string name() const override { return "host"; }
  uint32_t threads() const override { return threads_; }
  absl::Status kernels() const override { return absl::OkStatus(); }

  // The memory that the heap can give is not known, so it is not bounded here.
  absl::StatusOr<Memory> memory() override { return Memory{kUnbounded, kUnbounded}; }
  absl::StatusOr<void*> Allocate(size_t bytes) override;
  void Free(void* memory) override;
  absl::StatusOr<std::byte*> AllocatePinned(size_t bytes) override;
  void FreePinned(std::byte* memory) override { Free(memory); }

  absl::StatusOr<DeviceStream> MakeStream() override { return DeviceStream(); }
  void FreeStream(DeviceStream /*stream*/) override {}
  absl::Status Synchronize(DeviceStream /*stream*/) override { return absl::OkStatus(); }
  absl::StatusOr<bool> IsCapturing(DeviceStream /*stream*/) override { return false; }

  absl::StatusOr<DeviceEvent> MakeEvent() override { return DeviceEvent(); }
  void FreeEvent(DeviceEvent /*event*/) override {}
  absl::Status Record(DeviceEvent /*event*/, DeviceStream /*stream*/) override {
    return absl::OkStatus();
  }
  absl::Status WaitFor(DeviceEvent /*event*/, DeviceStream /*stream*/) override {
    return absl::OkStatus();
  }
  absl::StatusOr<bool> IsDone(DeviceEvent /*event*/) override { return true; }
  absl::Status Await(DeviceEvent /*event*/) override { return absl::OkStatus(); }

  absl::Status CopyToDevice(DeviceStream stream, ByteSpan from, void* to) override;
  absl::Status CopyToHost(DeviceStream stream, const void* from, MutableByteSpan to) override;
  absl::Status Zero(DeviceStream stream, void* memory, size_t bytes) override;
  absl::Status CopyOnDevice(DeviceStream stream, const void* from, void* to, size_t bytes) override;
  absl::Status LaunchKernel(DeviceStream stream, device_kernels::KernelId kernel, uint32_t blocks,
                            const void* arguments) override;

 private:
  static constexpr size_t kUnbounded = size_t{1} << 62;

  const uint32_t threads_;
  const LaunchOrder order_;
};

}  // namespace bdn

#endif  // BANDONEON_DEVICE_HOST_DEVICE_H_
