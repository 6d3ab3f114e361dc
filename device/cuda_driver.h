#ifndef BANDONEON_DEVICE_CUDA_DRIVER_H_
#define BANDONEON_DEVICE_CUDA_DRIVER_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace bdn {

// The list of the driver's functions that we call, with the name of each as a member of CudaDriver
// and its symbol. A test compares their parameters with cuda.h, where that is installed.
#define BDN_FOR_EACH_CUDA_FUNCTION(X)                                   \
  X(Init, cuInit)                                                       \
  X(DriverGetVersion, cuDriverGetVersion)                               \
  X(GetErrorName, cuGetErrorName)                                       \
  X(GetErrorString, cuGetErrorString)                                   \
  X(DeviceGetCount, cuDeviceGetCount)                                   \
  X(DeviceGet, cuDeviceGet)                                             \
  X(DeviceGetName, cuDeviceGetName)                                     \
  X(DeviceGetAttribute, cuDeviceGetAttribute)                           \
  X(DevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain)                   \
  X(DevicePrimaryCtxRelease, cuDevicePrimaryCtxRelease_v2)              \
  X(CtxPushCurrent, cuCtxPushCurrent_v2)                                \
  X(CtxPopCurrent, cuCtxPopCurrent_v2)                                  \
  X(CtxGetStreamPriorityRange, cuCtxGetStreamPriorityRange)             \
  X(ThreadExchangeStreamCaptureMode, cuThreadExchangeStreamCaptureMode) \
  X(ModuleLoadData, cuModuleLoadData)                                   \
  X(ModuleUnload, cuModuleUnload)                                       \
  X(ModuleGetFunction, cuModuleGetFunction)                             \
  X(FuncGetAttribute, cuFuncGetAttribute)                               \
  X(MemGetInfo, cuMemGetInfo_v2)                                        \
  X(MemAlloc, cuMemAlloc_v2)                                            \
  X(MemFree, cuMemFree_v2)                                              \
  X(MemHostAlloc, cuMemHostAlloc)                                       \
  X(MemFreeHost, cuMemFreeHost)                                         \
  X(MemcpyHtoDAsync, cuMemcpyHtoDAsync_v2)                              \
  X(MemcpyDtoHAsync, cuMemcpyDtoHAsync_v2)                              \
  X(MemcpyDtoDAsync, cuMemcpyDtoDAsync_v2)                              \
  X(MemsetD8Async, cuMemsetD8Async)                                     \
  X(StreamCreateWithPriority, cuStreamCreateWithPriority)               \
  X(StreamDestroy, cuStreamDestroy_v2)                                  \
  X(StreamSynchronize, cuStreamSynchronize)                             \
  X(StreamIsCapturing, cuStreamIsCapturing)                             \
  X(StreamWaitEvent, cuStreamWaitEvent)                                 \
  X(EventCreate, cuEventCreate)                                         \
  X(EventDestroy, cuEventDestroy_v2)                                    \
  X(EventRecord, cuEventRecord)                                         \
  X(EventQuery, cuEventQuery)                                           \
  X(EventSynchronize, cuEventSynchronize)                               \
  X(LaunchKernel, cuLaunchKernel)

// The functions of NVIDIA's driver, libcuda.so.1, that we call. They are declared here since
// nothing of CUDA is needed to build or to start: CUresult is int, CUdevice int, CUdeviceptr
// uint64_t, every handle void*. The names lack "cu", and the "_v2" that some symbols have.
struct CudaDriver {
  int (*Init)(unsigned flags);
  int (*DriverGetVersion)(int* version);
  int (*GetErrorName)(int error, const char** name);
  int (*GetErrorString)(int error, const char** text);
  int (*DeviceGetCount)(int* count);
  int (*DeviceGet)(int* device, int ordinal);
  int (*DeviceGetName)(char* name, int bytes, int device);
  int (*DeviceGetAttribute)(int* value, int attribute, int device);
  int (*DevicePrimaryCtxRetain)(void** context, int device);
  int (*DevicePrimaryCtxRelease)(int device);
  int (*CtxPushCurrent)(void* context);
  int (*CtxPopCurrent)(void** context);
  int (*CtxGetStreamPriorityRange)(int* least, int* greatest);
  int (*ThreadExchangeStreamCaptureMode)(int* mode);
  int (*ModuleLoadData)(void** module, const void* image);
  int (*ModuleUnload)(void* module);
  int (*ModuleGetFunction)(void** function, void* module, const char* name);
  int (*FuncGetAttribute)(int* value, int attribute, void* function);
  int (*MemGetInfo)(size_t* free, size_t* total);
  int (*MemAlloc)(uint64_t* memory, size_t bytes);
  int (*MemFree)(uint64_t memory);
  int (*MemHostAlloc)(void** memory, size_t bytes, unsigned flags);
  int (*MemFreeHost)(void* memory);
  int (*MemcpyHtoDAsync)(uint64_t to, const void* from, size_t bytes, void* stream);
  int (*MemcpyDtoHAsync)(void* to, uint64_t from, size_t bytes, void* stream);
  int (*MemcpyDtoDAsync)(uint64_t to, uint64_t from, size_t bytes, void* stream);
  int (*MemsetD8Async)(uint64_t to, unsigned char value, size_t bytes, void* stream);
  int (*StreamCreateWithPriority)(void** stream, unsigned flags, int priority);
  int (*StreamDestroy)(void* stream);
  int (*StreamSynchronize)(void* stream);
  int (*StreamIsCapturing)(void* stream, int* capture);
  int (*StreamWaitEvent)(void* stream, void* event, unsigned flags);
  int (*EventCreate)(void** event, unsigned flags);
  int (*EventDestroy)(void* event);
  int (*EventRecord)(void* event, void* stream);
  int (*EventQuery)(void* event);
  int (*EventSynchronize)(void* event);
  int (*LaunchKernel)(void* function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                      unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                      void* stream, void** parameters, void** extra);

  // Drivers have it from CUDA 12.4 on; it is null in older ones.
  int (*FuncLoad)(void* function);

  // Opens the library and looks every function up. The library stays open as long as the process,
  // as drivers are not made to be unloaded. Returns NotFound where there is none;
  // FailedPrecondition names the function that it lacks.
  static absl::StatusOr<CudaDriver> Open(const std::string& library);

  // Returns OK for 0, else an error such as "cuMemAlloc of 4096 bytes: CUDA_ERROR_OUT_OF_MEMORY
  // (out of memory)". It is ResourceExhausted where memory is out, NotFound where there is no GPU,
  // else Internal.
  absl::Status Check(int error, const std::string& call) const;
};

}  // namespace bdn

#endif  // BANDONEON_DEVICE_CUDA_DRIVER_H_
