#ifndef BANDONEON_KERNELS_KERNEL_TARGETS_H_
#define BANDONEON_KERNELS_KERNEL_TARGETS_H_

#include <string>
#include <vector>

// For tests: which instruction sets the kernels were built for and this machine can run.

namespace bdn {

// Best first: "AVX3", "AVX2", "SSE4", ...
std::vector<std::string> KernelTargets();

// While it lives, every kernel of the process runs on `target`. One at a time, and no kernel may
// run while it is made or dropped. REQUIRES: `target` is one of KernelTargets().
class ScopedKernelTarget {
 public:
  explicit ScopedKernelTarget(const std::string& target);
  ~ScopedKernelTarget();
  ScopedKernelTarget(const ScopedKernelTarget&) = delete;
  ScopedKernelTarget& operator=(const ScopedKernelTarget&) = delete;
};

}  // namespace bdn

#endif  // BANDONEON_KERNELS_KERNEL_TARGETS_H_
