#ifndef BANDONEON_DEVICE_HOST_LAUNCHER_H_
#define BANDONEON_DEVICE_HOST_LAUNCHER_H_

#include <cstdint>

#include "device/kernels/kernel_id.h"
#include "device/kernels/portable.h"

namespace bdn {

// How the threads of a phase, and the blocks, follow each other. Kernels must not care.
enum class LaunchOrder {
  kForward,
  kBackward,
  // Two blocks at a time, and two threads of each, so that a thread sanitizer sees what they do to
  // the same word: what a GPU could do otherwise each time.
  kTogether
};

// Runs a kernel: block after block, phase after phase, thread after thread, on the calling thread
// unless the order is kTogether. Each block finds other bytes in what its threads share. REQUIRES:
// threads is from 1 to kMostThreads.
void LaunchOnHost(device_kernels::KernelId kernel, uint32_t blocks, uint32_t threads,
                  LaunchOrder order, const void* arguments);

}  // namespace bdn

#endif  // BANDONEON_DEVICE_HOST_LAUNCHER_H_
