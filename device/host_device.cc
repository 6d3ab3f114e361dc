#include "device/host_device.h"

#include <cstdlib>
#include <cstring>

#include "common/base/status.h"

namespace bdn {
namespace {

// The alignment that ComputeDevice::Allocate promises.
constexpr size_t kAlignment = 256;

}  // namespace

absl::StatusOr<void*> HostDevice::Allocate(size_t bytes) {
  // The block is no longer than was asked for, so that a sanitizer sees accesses past its end.
  void* memory = nullptr;
  if (posix_memalign(&memory, kAlignment, bytes) == 0) return memory;
  return ResourceExhausted("the host has no %d bytes left", bytes);
}

void HostDevice::Free(void* memory) { std::free(memory); }

absl::StatusOr<std::byte*> HostDevice::AllocatePinned(size_t bytes) {
  BDN_ASSIGN_OR_RETURN(void* const memory, Allocate(bytes));
  return static_cast<std::byte*>(memory);
}

absl::Status HostDevice::CopyToDevice(DeviceStream /*stream*/, ByteSpan from, void* to) {
  if (!from.empty()) std::memcpy(to, from.data(), from.size());
  return absl::OkStatus();
}

absl::Status HostDevice::CopyToHost(DeviceStream /*stream*/, const void* from, MutableByteSpan to) {
  if (!to.empty()) std::memcpy(to.data(), from, to.size());
  return absl::OkStatus();
}

absl::Status HostDevice::Zero(DeviceStream /*stream*/, void* memory, size_t bytes) {
  if (bytes > 0) std::memset(memory, 0, bytes);
  return absl::OkStatus();
}

absl::Status HostDevice::CopyOnDevice(DeviceStream /*stream*/, const void* from, void* to,
                                      size_t bytes) {
  if (bytes > 0) std::memcpy(to, from, bytes);
  return absl::OkStatus();
}

absl::Status HostDevice::LaunchKernel(DeviceStream /*stream*/, device_kernels::KernelId kernel,
                                      uint32_t blocks, const void* arguments) {
  LaunchOnHost(kernel, blocks, threads_, order_, arguments);
  return absl::OkStatus();
}

}  // namespace bdn
