#ifndef BANDONEON_DEVICE_HOST_LAUNCHER_H_
#define BANDONEON_DEVICE_HOST_LAUNCHER_H_

#include <cstdint>

#include "device/kernels/kernel_id.h"
#include "device/kernels/portable.h"

namespace bdn {

// In which order the threads of a phase, and the blocks, run. Kernels must not care.
enum class LaunchOrder { kForward, kBackward };

// Runs a kernel on the calling thread: block after block, phase after phase, thread after thread.
// Each block finds other bytes in what its threads share. REQUIRES: threads is from 1 to
// kMostThreads.
void LaunchOnHost(device_kernels::KernelId kernel, uint32_t blocks, uint32_t threads,
                  LaunchOrder order, const void* arguments);

}  // namespace bdn

#endif  // BANDONEON_DEVICE_HOST_LAUNCHER_H_
