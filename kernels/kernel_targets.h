#ifndef BANDONEON_KERNELS_KERNEL_TARGETS_H_
#define BANDONEON_KERNELS_KERNEL_TARGETS_H_

#include <string>
#include <vector>

// The instruction sets that the kernels were built for and this machine can run. For tests.

namespace bdn {

// Returns the names of these instruction sets, the best first: "AVX3", "AVX2", "SSE4", ...
std::vector<std::string> KernelTargets();

// A choice of instruction set: while it lives, every kernel of the process runs on `target`. Only
// one may live at a time, and no kernel may run while it is made or destroyed. REQUIRES: `target`
// is one of KernelTargets().
class ScopedKernelTarget {
 public:
  explicit ScopedKernelTarget(const std::string& target);
  ~ScopedKernelTarget();
  ScopedKernelTarget(const ScopedKernelTarget&) = delete;
  ScopedKernelTarget& operator=(const ScopedKernelTarget&) = delete;
};

}  // namespace bdn

#endif  // BANDONEON_KERNELS_KERNEL_TARGETS_H_
