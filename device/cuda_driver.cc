#include "device/cuda_driver.h"

#include <dlfcn.h>

#include "common/base/status.h"

namespace bdn {
namespace {

// CUresult's.
constexpr int kOutOfMemory = 2;
constexpr int kNoDevice = 100;
constexpr int kInvalidDevice = 101;

template <typename Function>
absl::Status Find(void* library, const std::string& path, const char* symbol, Function** to) {
  *to = reinterpret_cast<Function*>(dlsym(library, symbol));
  if (*to != nullptr) return absl::OkStatus();
  return FailedPrecondition("%s lacks %s: NVIDIA's driver is too old for kernels, update it", path,
                            symbol);
}

}  // namespace

absl::StatusOr<CudaDriver> CudaDriver::Open(const std::string& library) {
  void* const handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    return NotFound("no NVIDIA driver on this machine: %s", dlerror());
  }
  CudaDriver driver;
  absl::Status status;
  const auto find = [&](const char* symbol, auto** to) {
    if (status.ok()) status = Find(handle, library, symbol, to);
  };
  find("cuInit", &driver.Init);
  find("cuDriverGetVersion", &driver.DriverGetVersion);
  find("cuGetErrorName", &driver.GetErrorName);
  find("cuGetErrorString", &driver.GetErrorString);
  find("cuDeviceGet", &driver.DeviceGet);
  find("cuDeviceGetName", &driver.DeviceGetName);
  find("cuDevicePrimaryCtxRetain", &driver.DevicePrimaryCtxRetain);
  find("cuDevicePrimaryCtxRelease_v2", &driver.DevicePrimaryCtxRelease);
  find("cuCtxPushCurrent_v2", &driver.CtxPushCurrent);
  find("cuCtxPopCurrent_v2", &driver.CtxPopCurrent);
  find("cuModuleLoadData", &driver.ModuleLoadData);
  find("cuModuleUnload", &driver.ModuleUnload);
  find("cuModuleGetFunction", &driver.ModuleGetFunction);
  find("cuMemAlloc_v2", &driver.MemAlloc);
  find("cuMemFree_v2", &driver.MemFree);
  find("cuMemHostAlloc", &driver.MemHostAlloc);
  find("cuMemFreeHost", &driver.MemFreeHost);
  find("cuMemcpyHtoDAsync_v2", &driver.MemcpyHtoDAsync);
  find("cuMemcpyDtoHAsync_v2", &driver.MemcpyDtoHAsync);
  find("cuMemcpyDtoDAsync_v2", &driver.MemcpyDtoDAsync);
  find("cuStreamCreate", &driver.StreamCreate);
  find("cuStreamDestroy_v2", &driver.StreamDestroy);
  find("cuStreamSynchronize", &driver.StreamSynchronize);
  find("cuStreamIsCapturing", &driver.StreamIsCapturing);
  find("cuStreamWaitEvent", &driver.StreamWaitEvent);
  find("cuEventCreate", &driver.EventCreate);
  find("cuEventDestroy_v2", &driver.EventDestroy);
  find("cuEventRecord", &driver.EventRecord);
  find("cuEventQuery", &driver.EventQuery);
  find("cuEventSynchronize", &driver.EventSynchronize);
  find("cuLaunchKernel", &driver.LaunchKernel);
  if (!status.ok()) return status;
  return driver;
}

absl::Status CudaDriver::Check(int error, const std::string& call) const {
  if (error == 0) return absl::OkStatus();
  const char* name = nullptr;
  const char* text = nullptr;
  GetErrorName(error, &name);
  GetErrorString(error, &text);
  const std::string message = absl::StrFormat(
      "%s: %s (%s)", call, name == nullptr ? "error " + std::to_string(error) : std::string(name),
      text == nullptr ? "unknown to the driver" : text);
  if (error == kOutOfMemory) return ResourceExhausted("%s", message);
  if (error == kNoDevice || error == kInvalidDevice) return NotFound("%s", message);
  return Internal("%s", message);
}

}  // namespace bdn
