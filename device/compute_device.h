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

// A queue of a device: what is put into it is done in order. Null is the device's default one. For
// CUDA it is a CUstream, the caller's own or one of MakeStream.
struct DeviceStream {
  void* handle = nullptr;
};

// A point in a stream. For CUDA it is a CUevent.
struct DeviceEvent {
  void* handle = nullptr;
};

// Memory and execution on a device: an accelerator, or the host in its place (host_device.h).
// Thread-safe. Its memory is written through streams alone.
//
// Errors: ResourceExhausted where memory is out; else Internal, and the message has the device's
// call and its error. After an error of execution a device may refuse everything.
class ComputeDevice {
 public:
  virtual ~ComputeDevice() = default;

  // "NVIDIA H200 (cuda:0)"
  virtual std::string name() const = 0;
  // How many threads a block of a launch has: at most kMostThreads.
  virtual uint32_t threads() const = 0;
  // OK where LaunchKernel works; else why it does not, and copies are all that there is.
  virtual absl::Status kernels() const = 0;

  // How much memory of the device nobody has, whichever process, and how much it has in all.
  struct Memory {
    size_t free_bytes = 0;
    size_t total_bytes = 0;
  };
  virtual absl::StatusOr<Memory> memory() = 0;
  // Device memory of `bytes` > 0 bytes, aligned to 256.
  virtual absl::StatusOr<void*> Allocate(size_t bytes) = 0;
  // Waits for what the device still does. Null is allowed.
  virtual void Free(void* memory) = 0;
  // Host memory that the device copies from and to without a copy between: locked in place, so it
  // is dear and slow to make (pinned_pool.h keeps it). ResourceExhausted also where the system lets no more be locked.
  virtual absl::StatusOr<std::byte*> AllocatePinned(size_t bytes) = 0;
  virtual void FreePinned(std::byte* memory) = 0;

  virtual absl::StatusOr<DeviceStream> MakeStream() = 0;
  virtual void FreeStream(DeviceStream stream) = 0;
  // Waits until all that was put into the stream is done; says if it failed.
  virtual absl::Status Synchronize(DeviceStream stream) = 0;
  // Whether what is put into the stream is not done now, but kept for a graph that is run later.
  virtual absl::StatusOr<bool> IsCapturing(DeviceStream stream) = 0;

  virtual absl::StatusOr<DeviceEvent> MakeEvent() = 0;
  virtual void FreeEvent(DeviceEvent event) = 0;
  // The event is what was put into the stream so far.
  virtual absl::Status Record(DeviceEvent event, DeviceStream stream) = 0;
  // What is put into the stream from now on waits for the event; the caller does not.
  virtual absl::Status WaitFor(DeviceEvent event, DeviceStream stream) = 0;
  // Whether all of it is done.
  virtual absl::StatusOr<bool> IsDone(DeviceEvent event) = 0;
  // Waits, without a processor, until it is.
  virtual absl::Status Await(DeviceEvent event) = 0;

  // Copies in the stream's order. The host's memory lasts, unchanged or unread, until then; only
  // pinned memory is promised to be copied without the caller waiting.
  virtual absl::Status CopyToDevice(DeviceStream stream, ByteSpan from, void* to) = 0;
  virtual absl::Status CopyToHost(DeviceStream stream, const void* from, MutableByteSpan to) = 0;
  // Makes device memory zero, in the stream's order.
  virtual absl::Status Zero(DeviceStream stream, void* memory, size_t bytes) = 0;
  // From the device's memory to it; the two do not overlap.
  virtual absl::Status CopyOnDevice(DeviceStream stream, const void* from, void* to,
                                    size_t bytes) = 0;

  // Runs a kernel on `blocks` > 0 blocks of threads() threads. `arguments` are that kernel's
  // (Launch knows the type), copied before this returns. Never ResourceExhausted: kernels that were
  // launched before may have changed memory by then, so that beginning anew elsewhere would count twice.
  virtual absl::Status LaunchKernel(DeviceStream stream, device_kernels::KernelId kernel,
                                    uint32_t blocks, const void* arguments) = 0;
};

// A kernel of device/kernels, by its type.
template <class Kernel>
absl::Status Launch(ComputeDevice& device, DeviceStream stream, uint32_t blocks,
                    const typename Kernel::Arguments& arguments) {
  return device.LaunchKernel(stream, Kernel::kId, blocks, &arguments);
}

}  // namespace bdn

#endif  // BANDONEON_DEVICE_COMPUTE_DEVICE_H_
