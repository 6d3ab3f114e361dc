#include "device/cuda_driver.h"

#include <dlfcn.h>

#include "common/base/status.h"

namespace bdn {
namespace {

// Errors of CUresult that callers tell apart.
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
#define BDN_FIND_CUDA_FUNCTION(Name, Symbol) \
  if (status.ok()) status = Find(handle, library, #Symbol, &driver.Name);
  BDN_FOR_EACH_CUDA_FUNCTION(BDN_FIND_CUDA_FUNCTION)
#undef BDN_FIND_CUDA_FUNCTION
  if (!status.ok()) return status;
  // Older drivers lack it, which is no error.
  driver.FuncLoad = reinterpret_cast<int (*)(void*)>(dlsym(handle, "cuFuncLoad"));
  return driver;
}

absl::Status CudaDriver::Check(int error, const std::string& call) const {
  if (error == 0) return absl::OkStatus();
  const char* name = nullptr;
  const char* text = nullptr;
  // Both stay null for an error that the driver does not know.
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
