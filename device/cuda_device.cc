#include "device/cuda_device.h"

#include "common/base/status.h"

namespace bdn {
namespace {

using device_kernels::KernelId;
using device_kernels::kNumKernels;

#define BDN_KERNEL_SYMBOL(Name) "bdn_" #Name,
constexpr const char* kSymbols[] = {BDN_FOR_EACH_KERNEL(BDN_KERNEL_SYMBOL)};
#undef BDN_KERNEL_SYMBOL

// Of the driver's headers.
constexpr int kNotReady = 600;
constexpr unsigned kStreamNonBlocking = 1;
constexpr unsigned kEventSleeps = 1;  // whoever awaits it does
constexpr unsigned kEventWithoutTiming = 2;
constexpr int kCaptureIsOff = 0;
constexpr unsigned kPinnedForAllContexts = 1;

uint64_t AddressOf(const void* memory) { return reinterpret_cast<uintptr_t>(memory); }

std::string VersionText(int version) {
  return absl::StrFormat("%d.%d", version / 1000, version % 1000 / 10);
}

}  // namespace

template <class Call>
absl::Status CudaDevice::InContext(const std::string& what, const Call& call) const {
  BDN_RETURN_IF_ERROR(driver_.Check(driver_.CtxPushCurrent(context_), "cuCtxPushCurrent"));
  const int error = call();
  void* ours = nullptr;
  driver_.CtxPopCurrent(&ours);
  return driver_.Check(error, what);
}

absl::StatusOr<std::unique_ptr<CudaDevice>> CudaDevice::Open(const CudaOptions& options) {
  BDN_ASSIGN_OR_RETURN(const CudaDriver driver, CudaDriver::Open(options.library));
  std::unique_ptr<CudaDevice> device(new CudaDevice(driver, options.threads));
  BDN_RETURN_IF_ERROR(device->Initialize(options));
  return device;
}

absl::Status CudaDevice::Initialize(const CudaOptions& options) {
  BDN_RETURN_IF_ERROR(driver_.Check(driver_.Init(0), "cuInit"));
  BDN_RETURN_IF_ERROR(driver_.Check(driver_.DeviceGet(&device_, options.ordinal),
                                    absl::StrFormat("cuDeviceGet of GPU %d", options.ordinal)));
  char name[128] = "a GPU";
  BDN_RETURN_IF_ERROR(
      driver_.Check(driver_.DeviceGetName(name, sizeof(name), device_), "cuDeviceGetName"));
  name_ = absl::StrFormat("%s (cuda:%d)", name, options.ordinal);
  BDN_RETURN_IF_ERROR(driver_.Check(driver_.DevicePrimaryCtxRetain(&context_, device_),
                                    "cuDevicePrimaryCtxRetain"));
  kernels_ = LoadKernels(options);
  return absl::OkStatus();
}

absl::Status CudaDevice::LoadKernels(const CudaOptions& options) {
  if (options.image.empty()) {
    return FailedPrecondition(
        "built without kernels for GPUs: configure with -DBANDONEON_CUDA=ON, which needs nvcc");
  }
  int version = 0;
  BDN_RETURN_IF_ERROR(driver_.Check(driver_.DriverGetVersion(&version), "cuDriverGetVersion"));
  if (version < options.image_version) {
    return FailedPrecondition(
        "NVIDIA's driver is of CUDA %s, these kernels need that of %s or newer: update it",
        VersionText(version), VersionText(options.image_version));
  }
  BDN_RETURN_IF_ERROR(InContext("cuModuleLoadData of the kernels for " + name_, [&] {
    return driver_.ModuleLoadData(&module_, options.image.data());
  }));
  for (uint32_t i = 0; i < kNumKernels; ++i) {
    BDN_RETURN_IF_ERROR(InContext(absl::StrFormat("cuModuleGetFunction of %s", kSymbols[i]), [&] {
      return driver_.ModuleGetFunction(&functions_[i], module_, kSymbols[i]);
    }));
  }
  return absl::OkStatus();
}

// What cannot be given back was lost with the context: nobody could do anything about it.
CudaDevice::~CudaDevice() {
  if (module_ != nullptr) {
    InContext("cuModuleUnload", [&] { return driver_.ModuleUnload(module_); }).IgnoreError();
  }
  if (context_ != nullptr) driver_.DevicePrimaryCtxRelease(device_);
}

absl::StatusOr<void*> CudaDevice::Allocate(size_t bytes) {
  uint64_t memory = 0;
  BDN_RETURN_IF_ERROR(InContext(absl::StrFormat("cuMemAlloc of %d bytes on %s", bytes, name_),
                                [&] { return driver_.MemAlloc(&memory, bytes); }));
  return reinterpret_cast<void*>(static_cast<uintptr_t>(memory));
}

void CudaDevice::Free(void* memory) {
  if (memory == nullptr) return;
  InContext("cuMemFree", [&] { return driver_.MemFree(AddressOf(memory)); }).IgnoreError();
}

absl::StatusOr<std::byte*> CudaDevice::AllocatePinned(size_t bytes) {
  void* memory = nullptr;
  BDN_RETURN_IF_ERROR(InContext(absl::StrFormat("cuMemHostAlloc of %d bytes", bytes), [&] {
    return driver_.MemHostAlloc(&memory, bytes, kPinnedForAllContexts);
  }));
  return static_cast<std::byte*>(memory);
}

void CudaDevice::FreePinned(std::byte* memory) {
  if (memory == nullptr) return;
  InContext("cuMemFreeHost", [&] { return driver_.MemFreeHost(memory); }).IgnoreError();
}

absl::StatusOr<DeviceStream> CudaDevice::MakeStream() {
  DeviceStream stream;
  BDN_RETURN_IF_ERROR(InContext(
      "cuStreamCreate", [&] { return driver_.StreamCreate(&stream.handle, kStreamNonBlocking); }));
  return stream;
}

void CudaDevice::FreeStream(DeviceStream stream) {
  InContext("cuStreamDestroy", [&] { return driver_.StreamDestroy(stream.handle); }).IgnoreError();
}

absl::Status CudaDevice::Synchronize(DeviceStream stream) {
  return InContext("cuStreamSynchronize", [&] { return driver_.StreamSynchronize(stream.handle); });
}

absl::StatusOr<bool> CudaDevice::IsCapturing(DeviceStream stream) {
  int capture = kCaptureIsOff;
  BDN_RETURN_IF_ERROR(InContext(
      "cuStreamIsCapturing", [&] { return driver_.StreamIsCapturing(stream.handle, &capture); }));
  return capture != kCaptureIsOff;
}

absl::StatusOr<DeviceEvent> CudaDevice::MakeEvent() {
  DeviceEvent event;
  BDN_RETURN_IF_ERROR(InContext("cuEventCreate", [&] {
    return driver_.EventCreate(&event.handle, kEventSleeps | kEventWithoutTiming);
  }));
  return event;
}

void CudaDevice::FreeEvent(DeviceEvent event) {
  InContext("cuEventDestroy", [&] { return driver_.EventDestroy(event.handle); }).IgnoreError();
}

absl::Status CudaDevice::Record(DeviceEvent event, DeviceStream stream) {
  return InContext("cuEventRecord",
                   [&] { return driver_.EventRecord(event.handle, stream.handle); });
}

absl::Status CudaDevice::WaitFor(DeviceEvent event, DeviceStream stream) {
  return InContext("cuStreamWaitEvent",
                   [&] { return driver_.StreamWaitEvent(stream.handle, event.handle, 0); });
}

absl::StatusOr<bool> CudaDevice::IsDone(DeviceEvent event) {
  bool is_done = true;
  BDN_RETURN_IF_ERROR(InContext("cuEventQuery", [&] {
    const int error = driver_.EventQuery(event.handle);
    is_done = error != kNotReady;
    return is_done ? error : 0;
  }));
  return is_done;
}

absl::Status CudaDevice::Await(DeviceEvent event) {
  return InContext("cuEventSynchronize", [&] { return driver_.EventSynchronize(event.handle); });
}

absl::Status CudaDevice::CopyToDevice(DeviceStream stream, ByteSpan from, void* to) {
  if (from.empty()) return absl::OkStatus();
  return InContext(absl::StrFormat("cuMemcpyHtoDAsync of %d bytes", from.size()), [&] {
    return driver_.MemcpyHtoDAsync(AddressOf(to), from.data(), from.size(), stream.handle);
  });
}

absl::Status CudaDevice::CopyToHost(DeviceStream stream, const void* from, MutableByteSpan to) {
  if (to.empty()) return absl::OkStatus();
  return InContext(absl::StrFormat("cuMemcpyDtoHAsync of %d bytes", to.size()), [&] {
    return driver_.MemcpyDtoHAsync(to.data(), AddressOf(from), to.size(), stream.handle);
  });
}

absl::Status CudaDevice::CopyOnDevice(DeviceStream stream, const void* from, void* to,
                                      size_t bytes) {
  if (bytes == 0) return absl::OkStatus();
  return InContext(absl::StrFormat("cuMemcpyDtoDAsync of %d bytes", bytes), [&] {
    return driver_.MemcpyDtoDAsync(AddressOf(to), AddressOf(from), bytes, stream.handle);
  });
}

absl::Status CudaDevice::LaunchKernel(DeviceStream stream, KernelId kernel, uint32_t blocks,
                                      const void* arguments) {
  BDN_RETURN_IF_ERROR(kernels_);
  const auto i = static_cast<uint32_t>(kernel);
  void* parameters[] = {const_cast<void*>(arguments)};
  return InContext(absl::StrFormat("cuLaunchKernel of %s on %d blocks", kSymbols[i], blocks), [&] {
    return driver_.LaunchKernel(functions_[i], blocks, 1, 1, threads_, 1, 1, 0, stream.handle,
                                parameters, nullptr);
  });
}

}  // namespace bdn
