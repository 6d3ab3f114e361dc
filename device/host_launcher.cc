#include "device/host_launcher.h"

#include <cstring>
#include <type_traits>

#include "device/kernels/kernel_list.h"

namespace bdn {
namespace {

using device_kernels::KernelId;
using device_kernels::Thread;

struct Shape {
  uint32_t blocks;
  uint32_t threads;
  LaunchOrder order;

  uint32_t InOrder(uint32_t i, uint32_t count) const {
    return order == LaunchOrder::kForward ? i : count - 1 - i;
  }
};

template <class Kernel, int kPhase>
void RunPhasesOfBlock(uint32_t block, const Shape& shape,
                      const typename Kernel::Arguments& arguments,
                      typename Kernel::Shared& shared) {
  for (uint32_t i = 0; i < shape.threads; ++i) {
    const Thread at{block, shape.InOrder(i, shape.threads), shape.threads};
    Kernel::template Run<kPhase>(at, arguments, shared);
  }
  if constexpr (kPhase + 1 < Kernel::kPhases) {
    RunPhasesOfBlock<Kernel, kPhase + 1>(block, shape, arguments, shared);
  }
}

template <class Kernel>
void LaunchOf(const Shape& shape, const void* from) {
  static_assert(std::is_trivially_copyable_v<typename Kernel::Arguments>);
  static_assert(std::is_trivially_default_constructible_v<typename Kernel::Shared>);
  static_assert(sizeof(typename Kernel::Shared) <= 48 * 1024, "more than every device has");
  typename Kernel::Arguments arguments;
  std::memcpy(&arguments, from, sizeof(arguments));
  typename Kernel::Shared shared;
  for (uint32_t i = 0; i < shape.blocks; ++i) {
    const uint32_t block = shape.InOrder(i, shape.blocks);
    std::memset(static_cast<void*>(&shared), static_cast<int>(0x5a + block) & 0xff, sizeof(shared));
    RunPhasesOfBlock<Kernel, 0>(block, shape, arguments, shared);
  }
}

}  // namespace

void LaunchOnHost(KernelId kernel, uint32_t blocks, uint32_t threads, LaunchOrder order,
                  const void* arguments) {
  const Shape shape{blocks, threads, order};
  switch (kernel) {
#define BDN_LAUNCH(Name)  \
  case KernelId::k##Name: \
    return LaunchOf<device_kernels::Name>(shape, arguments);
    BDN_FOR_EACH_KERNEL(BDN_LAUNCH)
#undef BDN_LAUNCH
  }
}

}  // namespace bdn
