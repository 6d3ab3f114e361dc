#include "device/cuda_device.h"

#include <algorithm>

#include "common/base/status.h"

namespace bdn {
namespace {

using device_kernels::KernelId;
using device_kernels::kNumKernels;

#define BDN_KERNEL_SYMBOL(Name) "bdn_" #Name,
constexpr const char* kSymbols[] = {BDN_FOR_EACH_KERNEL(BDN_KERNEL_SYMBOL)};
#undef BDN_KERNEL_SYMBOL

// These numbers are those of the driver's headers.
constexpr int kNotReady = 600;
constexpr unsigned kStreamNonBlocking = 1;
constexpr unsigned kEventSleeps = 1;  // a thread that awaits such an event sleeps
constexpr unsigned kEventWithoutTiming = 2;
constexpr int kCaptureIsOff = 0;
constexpr int kCaptureRelaxed = 2;
constexpr int kAttributeOfRegisters = 4;
constexpr int kAttributeOfMajor = 75;
constexpr int kAttributeOfMinor = 76;
constexpr int kNoBinaryForGpu = 209;
constexpr int kUnsupportedPtx = 222;
constexpr int kOperatingSystem = 304;
constexpr unsigned kPinnedForAllContexts = 1;

uint64_t AddressOf(const void* memory) { return reinterpret_cast<uintptr_t>(memory); }

std::string VersionText(int version) {
  return absl::StrFormat("%d.%d", version / 1000, version % 1000 / 10);
}

// Returns OK where a driver of this version takes the kernels in one form or another.
absl::Status CheckDriver(const CudaOptions& options, int version) {
  if (options.image.empty()) {
    return FailedPrecondition(
        "built without kernels for GPUs: configure with -DBANDONEON_CUDA=ON, which needs nvcc");
  }
  const int oldest = options.text.empty() ? options.image_version
                                          : std::min(options.image_version, options.text_version);
  if (version >= oldest) return absl::OkStatus();
  return FailedPrecondition(
      "NVIDIA's driver is of CUDA %s, these kernels need that of %s or newer: update it",
      VersionText(version), VersionText(oldest));
}

}  // namespace

// The calling thread may use another GPU, or none, and may capture a graph: its context and its
// capture mode are as before when this returns.
template <class Call, class... Arguments>
absl::Status CudaDevice::InContext(const Call& call, const absl::FormatSpec<Arguments...>& format,
                                   const Arguments&... arguments) const {
  BDN_RETURN_IF_ERROR(driver_.Check(driver_.CtxPushCurrent(context_), "cuCtxPushCurrent"));
  int mode = kCaptureRelaxed;
  driver_.ThreadExchangeStreamCaptureMode(&mode);
  const int error = call();
  driver_.ThreadExchangeStreamCaptureMode(&mode);  // back to what it was
  void* ours = nullptr;
  driver_.CtxPopCurrent(&ours);
  if (error == 0) return absl::OkStatus();
  return driver_.Check(error, absl::StrFormat(format, arguments...));
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
  BDN_RETURN_IF_ERROR(InContext(
      [&] {
        int least = 0;
        return driver_.CtxGetStreamPriorityRange(&least, &greatest_priority_);
      },
      "cuCtxGetStreamPriorityRange"));
  // A device without kernels can still copy, so the error is kept for kernels() and does not end
  // the opening.
  kernels_ = LoadKernels(options);
  return absl::OkStatus();
}

absl::StatusOr<std::string> CudaDevice::DescribeAll(const CudaOptions& options) {
  BDN_ASSIGN_OR_RETURN(const CudaDriver driver, CudaDriver::Open(options.library));
  int count = 0, version = 0;
  BDN_RETURN_IF_ERROR(driver.Check(driver.Init(0), "cuInit"));
  BDN_RETURN_IF_ERROR(driver.Check(driver.DriverGetVersion(&version), "cuDriverGetVersion"));
  BDN_RETURN_IF_ERROR(driver.Check(driver.DeviceGetCount(&count), "cuDeviceGetCount"));
  // All GPUs have the same driver, so it is checked once.
  const absl::Status fits = CheckDriver(options, version);
  std::string lines;
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    char name[128] = "a GPU";
    int device = 0, major = 0, minor = 0;
    absl::Status status = driver.Check(driver.DeviceGet(&device, ordinal), "cuDeviceGet");
    if (status.ok()) {
      status = driver.Check(driver.DeviceGetName(name, sizeof(name), device), "cuDeviceGetName");
    }
    if (status.ok()) {
      // A major number that cannot be read stays 0, and is refused below as too old.
      driver.DeviceGetAttribute(&major, kAttributeOfMajor, device);
      driver.DeviceGetAttribute(&minor, kAttributeOfMinor, device);
      status = fits;
    }
    if (status.ok() && 10 * major + minor < options.least_capability) {
      status = FailedPrecondition("kernels are for GPUs of compute capability %d.%d and more",
                                  options.least_capability / 10, options.least_capability % 10);
    }
    absl::StrAppendFormat(
        &lines, "GPU: %s (cuda:%d), compute capability %d.%d, driver of CUDA %s, encodes: %s\n",
        name, ordinal, major, minor, VersionText(version),
        status.ok() ? "yes" : "no: " + std::string(status.message()));
  }
  if (count == 0) return NotFound("NVIDIA's driver is there, and no GPU");
  return lines;
}

// Loads the image, or the text where the driver is older than the image or the image has no code
// for this GPU.
absl::Status CudaDevice::LoadModule(const CudaOptions& options, int version) {
  const auto load = [&](ByteSpan from, const char* what) {
    return InContext([&] { return driver_.ModuleLoadData(&module_, from.data()); },
                     "cuModuleLoadData of the kernels for %s, as %s", name_, what);
  };
  const auto takes_text = [&] { return !options.text.empty() && version >= options.text_version; };
  if (version < options.image_version) return load(options.text, "PTX");
  int error = 0;
  const absl::Status status =
      InContext([&] { return error = driver_.ModuleLoadData(&module_, options.image.data()); },
                "cuModuleLoadData of the kernels for %s", name_);
  // The driver can compile the text for a GPU that the image knows nothing of.
  const bool is_of_others = error == kNoBinaryForGpu || error == kUnsupportedPtx;
  return is_of_others && takes_text() ? load(options.text, "PTX") : status;
}

absl::Status CudaDevice::LoadKernels(const CudaOptions& options) {
  int version = 0;
  BDN_RETURN_IF_ERROR(driver_.Check(driver_.DriverGetVersion(&version), "cuDriverGetVersion"));
  BDN_RETURN_IF_ERROR(CheckDriver(options, version));
  BDN_RETURN_IF_ERROR(LoadModule(options, version));
  for (uint32_t i = 0; i < kNumKernels; ++i) {
    BDN_RETURN_IF_ERROR(
        InContext([&] { return driver_.ModuleGetFunction(&functions_[i], module_, kSymbols[i]); },
                  "cuModuleGetFunction of %s", kSymbols[i]));
    // Drivers load a function when it is first used. Loaded now, it needs no memory in the middle
    // of a training, when there may be none. Drivers without cuFuncLoad load a function to read an
    // attribute of it.
    BDN_RETURN_IF_ERROR(InContext(
        [&] {
          if (driver_.FuncLoad != nullptr) return driver_.FuncLoad(functions_[i]);
          int registers = 0;
          return driver_.FuncGetAttribute(&registers, kAttributeOfRegisters, functions_[i]);
        },
        "loading %s", kSymbols[i]));
  }
  return absl::OkStatus();
}

// Errors are ignored: a module that cannot be given back was lost with the context.
CudaDevice::~CudaDevice() {
  if (module_ != nullptr) {
    InContext([&] { return driver_.ModuleUnload(module_); }, "cuModuleUnload").IgnoreError();
  }
  if (context_ != nullptr) driver_.DevicePrimaryCtxRelease(device_);
}

absl::StatusOr<ComputeDevice::Memory> CudaDevice::memory() {
  Memory memory;
  BDN_RETURN_IF_ERROR(
      InContext([&] { return driver_.MemGetInfo(&memory.free_bytes, &memory.total_bytes); },
                "cuMemGetInfo of %s", name_));
  return memory;
}

absl::StatusOr<void*> CudaDevice::Allocate(size_t bytes) {
  uint64_t memory = 0;
  BDN_RETURN_IF_ERROR(InContext([&] { return driver_.MemAlloc(&memory, bytes); },
                                "cuMemAlloc of %d bytes on %s", bytes, name_));
  return reinterpret_cast<void*>(static_cast<uintptr_t>(memory));
}

void CudaDevice::Free(void* memory) {
  if (memory == nullptr) return;
  InContext([&] { return driver_.MemFree(AddressOf(memory)); }, "cuMemFree").IgnoreError();
}

absl::StatusOr<std::byte*> CudaDevice::AllocatePinned(size_t bytes) {
  void* memory = nullptr;
  int error = 0;
  const absl::Status status =
      InContext([&] { return error = driver_.MemHostAlloc(&memory, bytes, kPinnedForAllContexts); },
                "cuMemHostAlloc of %d bytes", bytes);
  // Where a system limits locked memory, the driver returns an error of its own kind. To callers it
  // means that memory is out.
  if (error == kOperatingSystem) return ResourceExhausted("%s", status.message());
  BDN_RETURN_IF_ERROR(status);
  return static_cast<std::byte*>(memory);
}

void CudaDevice::FreePinned(std::byte* memory) {
  if (memory == nullptr) return;
  InContext([&] { return driver_.MemFreeHost(memory); }, "cuMemFreeHost").IgnoreError();
}

absl::StatusOr<DeviceStream> CudaDevice::MakeStream() {
  DeviceStream stream;
  // A stream that is not "non-blocking" would wait for the work that others put into the default
  // stream.
  BDN_RETURN_IF_ERROR(InContext(
      [&] {
        return driver_.StreamCreateWithPriority(&stream.handle, kStreamNonBlocking,
                                                greatest_priority_);
      },
      "cuStreamCreateWithPriority"));
  return stream;
}

void CudaDevice::FreeStream(DeviceStream stream) {
  InContext([&] { return driver_.StreamDestroy(stream.handle); }, "cuStreamDestroy").IgnoreError();
}

absl::Status CudaDevice::Synchronize(DeviceStream stream) {
  return InContext([&] { return driver_.StreamSynchronize(stream.handle); }, "cuStreamSynchronize");
}

absl::StatusOr<bool> CudaDevice::IsCapturing(DeviceStream stream) {
  int capture = kCaptureIsOff;
  BDN_RETURN_IF_ERROR(InContext([&] { return driver_.StreamIsCapturing(stream.handle, &capture); },
                                "cuStreamIsCapturing"));
  return capture != kCaptureIsOff;
}

absl::StatusOr<DeviceEvent> CudaDevice::MakeEvent() {
  DeviceEvent event;
  BDN_RETURN_IF_ERROR(InContext(
      [&] { return driver_.EventCreate(&event.handle, kEventSleeps | kEventWithoutTiming); },
      "cuEventCreate"));
  return event;
}

void CudaDevice::FreeEvent(DeviceEvent event) {
  InContext([&] { return driver_.EventDestroy(event.handle); }, "cuEventDestroy").IgnoreError();
}

absl::Status CudaDevice::Record(DeviceEvent event, DeviceStream stream) {
  return InContext([&] { return driver_.EventRecord(event.handle, stream.handle); },
                   "cuEventRecord");
}

absl::Status CudaDevice::WaitFor(DeviceEvent event, DeviceStream stream) {
  return InContext([&] { return driver_.StreamWaitEvent(stream.handle, event.handle, 0); },
                   "cuStreamWaitEvent");
}

absl::StatusOr<bool> CudaDevice::IsDone(DeviceEvent event) {
  bool is_done = true;
  BDN_RETURN_IF_ERROR(InContext(
      [&] {
        // "Not ready" is an answer here, and not an error.
        const int error = driver_.EventQuery(event.handle);
        is_done = error != kNotReady;
        return is_done ? error : 0;
      },
      "cuEventQuery"));
  return is_done;
}

absl::Status CudaDevice::Await(DeviceEvent event) {
  return InContext([&] { return driver_.EventSynchronize(event.handle); }, "cuEventSynchronize");
}

absl::Status CudaDevice::CopyToDevice(DeviceStream stream, ByteSpan from, void* to) {
  if (from.empty()) return absl::OkStatus();
  return InContext(
      [&] {
        return driver_.MemcpyHtoDAsync(AddressOf(to), from.data(), from.size(), stream.handle);
      },
      "cuMemcpyHtoDAsync of %d bytes", from.size());
}

absl::Status CudaDevice::CopyToHost(DeviceStream stream, const void* from, MutableByteSpan to) {
  if (to.empty()) return absl::OkStatus();
  return InContext(
      [&] { return driver_.MemcpyDtoHAsync(to.data(), AddressOf(from), to.size(), stream.handle); },
      "cuMemcpyDtoHAsync of %d bytes", to.size());
}

absl::Status CudaDevice::Zero(DeviceStream stream, void* memory, size_t bytes) {
  if (bytes == 0) return absl::OkStatus();
  return InContext(
      [&] { return driver_.MemsetD8Async(AddressOf(memory), 0, bytes, stream.handle); },
      "cuMemsetD8Async of %d bytes", bytes);
}

absl::Status CudaDevice::CopyOnDevice(DeviceStream stream, const void* from, void* to,
                                      size_t bytes) {
  if (bytes == 0) return absl::OkStatus();
  return InContext(
      [&] { return driver_.MemcpyDtoDAsync(AddressOf(to), AddressOf(from), bytes, stream.handle); },
      "cuMemcpyDtoDAsync of %d bytes", bytes);
}

absl::Status CudaDevice::LaunchKernel(DeviceStream stream, KernelId kernel, uint32_t blocks,
                                      const void* arguments) {
  BDN_RETURN_IF_ERROR(kernels_);
  const auto i = static_cast<uint32_t>(kernel);
  void* parameters[] = {const_cast<void*>(arguments)};
  const absl::Status status = InContext(
      [&] {
        return driver_.LaunchKernel(functions_[i], blocks, 1, 1, threads_, 1, 1, 0, stream.handle,
                                    parameters, nullptr);
      },
      "cuLaunchKernel of %s on %d blocks", kSymbols[i], blocks);
  // After ResourceExhausted a caller would begin anew elsewhere, but kernels that were launched
  // before may have changed memory already.
  if (absl::IsResourceExhausted(status)) return Internal("%s", status.message());
  return status;
}

}  // namespace bdn
