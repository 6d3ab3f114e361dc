#include "kernels/kernel_targets.h"

#include <cstdint>

#include "hwy/highway.h"

namespace bdn {

std::vector<std::string> KernelTargets() {
  std::vector<std::string> names;
  for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
    names.emplace_back(hwy::TargetName(target));
  }
  return names;
}

ScopedKernelTarget::ScopedKernelTarget(const std::string& target) {
  for (const int64_t candidate : hwy::SupportedAndGeneratedTargets()) {
    if (target == hwy::TargetName(candidate)) hwy::SetSupportedTargetsForTest(candidate);
  }
  // The choice was made at the first call of a kernel, so it is made again.
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

ScopedKernelTarget::~ScopedKernelTarget() {
  // 0 lifts the restriction.
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

}  // namespace bdn
