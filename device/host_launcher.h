#ifndef BANDONEON_DEVICE_HOST_LAUNCHER_H_
#define BANDONEON_DEVICE_HOST_LAUNCHER_H_

#include <cstdint>

#include "device/kernels/kernel_id.h"
#include "device/kernels/portable.h"

namespace bdn {

// The order in which the blocks, and the threads of a phase, follow each other. Kernels must not
// depend on it.
enum class LaunchOrder {
  kForward,
  kBackward,
  // Two blocks run at a time, and two threads of each, so that a thread sanitizer sees their
  // accesses to the same word: on a GPU these may come in another order each time.
  kTogether
};

// Runs a kernel: block after block, phase after phase, thread after thread, on the calling thread
// unless the order is kTogether. The memory that the threads of a block share begins with other
// bytes for each block. REQUIRES: threads is from 1 to kMostThreads.
void LaunchOnHost(device_kernels::KernelId kernel, uint32_t blocks, uint32_t threads,
                  LaunchOrder order, const void* arguments);

}  // namespace bdn

#endif  // BANDONEON_DEVICE_HOST_LAUNCHER_H_
