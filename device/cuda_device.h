#ifndef BANDONEON_DEVICE_CUDA_DEVICE_H_
#define BANDONEON_DEVICE_CUDA_DEVICE_H_

#include <array>
#include <memory>
#include <string>

#include "device/compute_device.h"
#include "device/cuda_driver.h"
#include "device/kernel_image.h"
#include "device/kernels/portable.h"

namespace bdn {

struct CudaOptions {
  int ordinal = 0;  // which GPU, as CUDA numbers them
  uint32_t threads = device_kernels::kMostThreads;
  // For tests: what stands for the driver, and what it is given to load.
  std::string library = "libcuda.so.1";
  ByteSpan image = KernelImage();
  int image_version = KernelImageVersion();
};

// An NVIDIA GPU, in its primary context, which PyTorch and CUDA's runtime use too: their memory,
// streams and events are ours. Each call leaves the calling thread's context as it found it.
class CudaDevice final : public ComputeDevice {
 public:
  // Opens the driver, and loads the kernels where they are there and it takes them: kernels() is
  // FailedPrecondition where it was built without any, or the driver is too old for them. NotFound:
  // no driver, or no such GPU. FailedPrecondition: the driver is older than all of this. Else as
  // ComputeDevice.
  static absl::StatusOr<std::unique_ptr<CudaDevice>> Open(const CudaOptions& options = {});
  // REQUIRES: its streams are done.
  ~CudaDevice() override;
  CudaDevice(const CudaDevice&) = delete;
  CudaDevice& operator=(const CudaDevice&) = delete;

  std::string name() const override { return name_; }
  uint32_t threads() const override { return threads_; }
  absl::Status kernels() const override { return kernels_; }

  absl::StatusOr<void*> Allocate(size_t bytes) override;
  void Free(void* memory) override;
  absl::StatusOr<std::byte*> AllocatePinned(size_t bytes) override;
  void FreePinned(std::byte* memory) override;

  absl::StatusOr<DeviceStream> MakeStream() override;
  void FreeStream(DeviceStream stream) override;
  absl::Status Synchronize(DeviceStream stream) override;
  absl::StatusOr<bool> IsCapturing(DeviceStream stream) override;

  absl::StatusOr<DeviceEvent> MakeEvent() override;
  void FreeEvent(DeviceEvent event) override;
  absl::Status Record(DeviceEvent event, DeviceStream stream) override;
  absl::Status WaitFor(DeviceEvent event, DeviceStream stream) override;
  absl::StatusOr<bool> IsDone(DeviceEvent event) override;
  absl::Status Await(DeviceEvent event) override;

  absl::Status CopyToDevice(DeviceStream stream, ByteSpan from, void* to) override;
  absl::Status CopyToHost(DeviceStream stream, const void* from, MutableByteSpan to) override;
  absl::Status CopyOnDevice(DeviceStream stream, const void* from, void* to, size_t bytes) override;
  absl::Status LaunchKernel(DeviceStream stream, device_kernels::KernelId kernel, uint32_t blocks,
                            const void* arguments) override;

 private:
  CudaDevice(const CudaDriver& driver, uint32_t threads) : driver_(driver), threads_(threads) {}
  absl::Status Initialize(const CudaOptions& options);
  absl::Status LoadKernels(const CudaOptions& options);
  // Calls the driver in our context, and says how it went.
  template <class Call>
  absl::Status InContext(const std::string& what, const Call& call) const;

  const CudaDriver driver_;
  const uint32_t threads_;
  // Set by Initialize, const afterwards.
  int device_ = 0;
  std::string name_;
  void* context_ = nullptr;
  absl::Status kernels_;
  void* module_ = nullptr;
  std::array<void*, device_kernels::kNumKernels> functions_{};
};

}  // namespace bdn

#endif  // BANDONEON_DEVICE_CUDA_DEVICE_H_
