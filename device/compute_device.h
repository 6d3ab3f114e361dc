#ifndef BANDONEON_DEVICE_COMPUTE_DEVICE_H_
#define BANDONEON_DEVICE_COMPUTE_DEVICE_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/bytes.h"
#include "device/kernels/kernel_id.h"

namespace bdn {

// A queue of a device, which does its work in order. Null is the device's default queue. For CUDA
// it is a CUstream, the caller's own or one of MakeStream.
struct DeviceStream {
  void* handle = nullptr;
};

// A point in a stream. For CUDA it is a CUevent.
struct DeviceEvent {
  void* handle = nullptr;
};

// A device's memory and execution. The device is an accelerator, or the host in its place
// (host_device.h). Thread-safe. Its memory is written through streams alone.
//
// Errors are ResourceExhausted where memory is out, else Internal; the message has the device's
// call and its error. After an error of execution a device may refuse everything.
class ComputeDevice {
 public:
  virtual ~ComputeDevice() = default;

  // Returns a name such as "NVIDIA H200 (cuda:0)".
  virtual std::string name() const = 0;
  // Returns the number of threads in a block of a launch: at most kMostThreads.
  virtual uint32_t threads() const = 0;
  // Returns OK where LaunchKernel works, else the reason why it does not; then the device can only
  // copy.
  virtual absl::Status kernels() const = 0;

  // The device's memory that no process has taken, and its memory in all.
  struct Memory {
    size_t free_bytes = 0;
    size_t total_bytes = 0;
  };
  virtual absl::StatusOr<Memory> memory() = 0;
  // Returns device memory of `bytes` > 0 bytes, aligned to 256.
  virtual absl::StatusOr<void*> Allocate(size_t bytes) = 0;
  // Frees memory of Allocate. Waits for the work that the device still has to do. Null is allowed.
  virtual void Free(void* memory) = 0;
  // Returns host memory that the device copies from and to directly. It is locked in place, which
  // makes it scarce and slow to make (pinned_pool.h keeps it). Returns ResourceExhausted also where
  // the system lets no more memory be locked.
  virtual absl::StatusOr<std::byte*> AllocatePinned(size_t bytes) = 0;
  virtual void FreePinned(std::byte* memory) = 0;

  virtual absl::StatusOr<DeviceStream> MakeStream() = 0;
  virtual void FreeStream(DeviceStream stream) = 0;
  // Waits until the stream has done all of its work; returns an error if some of it failed.
  virtual absl::Status Synchronize(DeviceStream stream) = 0;
  // Returns whether the stream keeps its work for a graph that is run later, and does not do it
  // now.
  virtual absl::StatusOr<bool> IsCapturing(DeviceStream stream) = 0;

  virtual absl::StatusOr<DeviceEvent> MakeEvent() = 0;
  virtual void FreeEvent(DeviceEvent event) = 0;
  // Sets the event to the end of the work that is in the stream so far.
  virtual absl::Status Record(DeviceEvent event, DeviceStream stream) = 0;
  // Makes later work in the stream wait for the event; the caller does not wait.
  virtual absl::Status WaitFor(DeviceEvent event, DeviceStream stream) = 0;
  // Returns whether the device has come to the event.
  virtual absl::StatusOr<bool> IsDone(DeviceEvent event) = 0;
  // Waits until the device has come to the event, without using a processor.
  virtual absl::Status Await(DeviceEvent event) = 0;

  // Copy in the stream's order. Until a copy is done, the host's memory must stay: `from`
  // unchanged, `to` unread. Only with pinned memory is it promised that the caller does not wait
  // for the copy.
  virtual absl::Status CopyToDevice(DeviceStream stream, ByteSpan from, void* to) = 0;
  virtual absl::Status CopyToHost(DeviceStream stream, const void* from, MutableByteSpan to) = 0;
  // Makes device memory zero, in the stream's order.
  virtual absl::Status Zero(DeviceStream stream, void* memory, size_t bytes) = 0;
  // Copies from the device's memory to the device's memory, in the stream's order; the two ranges
  // do not overlap.
  virtual absl::Status CopyOnDevice(DeviceStream stream, const void* from, void* to,
                                    size_t bytes) = 0;

  // Runs a kernel on `blocks` > 0 blocks of threads() threads. `arguments` are those of that kernel
  // (Launch knows the type), and are copied before this returns. Never returns ResourceExhausted:
  // kernels that were launched before may have changed memory by then, so that a caller who begins
  // anew elsewhere would count twice.
  virtual absl::Status LaunchKernel(DeviceStream stream, device_kernels::KernelId kernel,
                                    uint32_t blocks, const void* arguments) = 0;
};

// Runs a kernel of device/kernels, named by its type.
template <class Kernel>
absl::Status Launch(ComputeDevice& device, DeviceStream stream, uint32_t blocks,
                    const typename Kernel::Arguments& arguments) {
  return device.LaunchKernel(stream, Kernel::kId, blocks, &arguments);
}

}  // namespace bdn

#endif  // BANDONEON_DEVICE_COMPUTE_DEVICE_H_
