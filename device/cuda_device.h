#ifndef BANDONEON_DEVICE_CUDA_DEVICE_H_
#define BANDONEON_DEVICE_CUDA_DEVICE_H_

#include <array>
#include <memory>
#include <string>

#include "absl/strings/str_format.h"
#include "device/compute_device.h"
#include "device/cuda_driver.h"
#include "device/kernel_image.h"
#include "device/kernels/portable.h"

namespace bdn {

// The choices in opening a GPU.
struct CudaOptions {
  int ordinal = 0;  // the GPU's number, as CUDA numbers them
  uint32_t threads = device_kernels::kMostThreads;
  // For tests: a library in place of the driver, and the kernels that it is given to load.
  std::string library = "libcuda.so.1";
  ByteSpan image = KernelImage();
  int image_version = KernelImageVersion();
  ByteSpan text = KernelText();
  int text_version = KernelTextVersion();
  int least_capability = KernelLeastCapability();
};

// An NVIDIA GPU, in its primary context, which PyTorch and CUDA's runtime use too: their memory,
// streams and events can be used here. Thread-safe. Each call leaves the calling thread's context
// as it found it. Calls are made in the capture mode RELAXED, so that a graph which some thread
// captures in the mode "global" neither refuses nor is spoilt by the work that our threads put into
// streams of their own.
class CudaDevice final : public ComputeDevice {
 public:
  // Opens the driver, and loads the kernels if this program has them and the driver takes them:
  // kernels() is FailedPrecondition where the program was built without any, or where the driver is
  // too old for them. Returns NotFound where there is no driver or no such GPU, FailedPrecondition
  // where the driver is too old for all of this, and else errors as ComputeDevice's.
  static absl::StatusOr<std::unique_ptr<CudaDevice>> Open(const CudaOptions& options = {});
  // Returns a line for each GPU of this machine, whatever is wrong with another: its name, its
  // compute capability, the driver's version, and whether there are kernels for it. Makes no
  // context, which would take memory of each GPU. Errors are as those of Open, where there is no
  // GPU at all.
  static absl::StatusOr<std::string> DescribeAll(const CudaOptions& options = {});
  // REQUIRES: its streams are done.
  ~CudaDevice() override;
  CudaDevice(const CudaDevice&) = delete;
  CudaDevice& operator=(const CudaDevice&) = delete;

  std::string name() const override { return name_; }
  uint32_t threads() const override { return threads_; }
  absl::Status kernels() const override { return kernels_; }

  absl::StatusOr<Memory> memory() override;
  absl::StatusOr<void*> Allocate(size_t bytes) override;
  void Free(void* memory) override;
  absl::StatusOr<std::byte*> AllocatePinned(size_t bytes) override;
  void FreePinned(std::byte* memory) override;

  // Returns a stream of the greatest priority that the device has, since the work in our streams is
  // short, and somebody waits for it.
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
  absl::Status Zero(DeviceStream stream, void* memory, size_t bytes) override;
  absl::Status CopyOnDevice(DeviceStream stream, const void* from, void* to, size_t bytes) override;
  absl::Status LaunchKernel(DeviceStream stream, device_kernels::KernelId kernel, uint32_t blocks,
                            const void* arguments) override;

 private:
  CudaDevice(const CudaDriver& driver, uint32_t threads) : driver_(driver), threads_(threads) {}
  absl::Status Initialize(const CudaOptions& options);
  absl::Status LoadKernels(const CudaOptions& options);
  absl::Status LoadModule(const CudaOptions& options, int version);
  // Calls the driver in our context, and returns its error. `format` and `arguments` name the call;
  // they become a text only where it fails.
  template <class Call, class... Arguments>
  absl::Status InContext(const Call& call, const absl::FormatSpec<Arguments...>& format,
                         const Arguments&... arguments) const;

  const CudaDriver driver_;
  const uint32_t threads_;
  // These are set by Initialize, and const afterwards.
  int device_ = 0;
  std::string name_;
  void* context_ = nullptr;
  int greatest_priority_ = 0;
  absl::Status kernels_;
  void* module_ = nullptr;
  std::array<void*, device_kernels::kNumKernels> functions_{};
};

}  // namespace bdn

#endif  // BANDONEON_DEVICE_CUDA_DEVICE_H_
