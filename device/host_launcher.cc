#include "device/host_launcher.h"

#include <barrier>
#include <cstring>
#include <thread>
#include <type_traits>
#include <vector>

#include "device/kernels/kernel_list.h"

namespace bdn {
namespace {

using device_kernels::KernelId;
using device_kernels::Thread;

// The size and the order of a launch.
struct Shape {
  uint32_t blocks;
  uint32_t threads;
  LaunchOrder order;

  uint32_t InOrder(uint32_t i, uint32_t count) const {
    return order == LaunchOrder::kBackward ? count - 1 - i : i;
  }
};

// Fills the shared memory of a block with bytes that differ from block to block, as its first
// contents are anything on a GPU: a kernel that reads them gives other results, and tests see it.
template <class Kernel>
void Dirty(uint32_t block, typename Kernel::Shared* shared) {
  std::memset(static_cast<void*>(shared), static_cast<int>(0x5a + block) & 0xff, sizeof(*shared));
}

// Runs thread `first` of a block, and every `step`-th thread after it, through all phases.
template <class Kernel, int kPhase, class EndOfPhase>
void RunThreads(uint32_t block, uint32_t first, uint32_t step, const Shape& shape,
                const typename Kernel::Arguments& arguments, typename Kernel::Shared& shared,
                const EndOfPhase& end_of_phase) {
  for (uint32_t i = first; i < shape.threads; i += step) {
    const Thread at{block, shape.InOrder(i, shape.threads), shape.threads};
    Kernel::template Run<kPhase>(at, arguments, shared);
  }
  end_of_phase();
  if constexpr (kPhase + 1 < Kernel::kPhases) {
    RunThreads<Kernel, kPhase + 1>(block, first, step, shape, arguments, shared, end_of_phase);
  }
}

// Runs all blocks on the calling thread. Nothing need wait at the end of a phase: all threads of
// the block have done it by then.
template <class Kernel>
void LaunchInOrder(const Shape& shape, const typename Kernel::Arguments& arguments) {
  typename Kernel::Shared shared;
  for (uint32_t i = 0; i < shape.blocks; ++i) {
    const uint32_t block = shape.InOrder(i, shape.blocks);
    Dirty<Kernel>(block, &shared);
    RunThreads<Kernel, 0>(block, 0, 1, shape, arguments, shared, [] {});
  }
}

// Runs two blocks at a time, each by a team of two threads. The members of a team meet after each
// phase, as __syncthreads() lets a block's threads meet.
template <class Kernel>
void LaunchTogether(const Shape& shape, const typename Kernel::Arguments& arguments) {
  constexpr uint32_t kTeams = 2;
  constexpr uint32_t kMembers = 2;
  struct Team {
    typename Kernel::Shared shared;
    std::barrier<> meeting{kMembers};
  };
  Team teams[kTeams];
  std::vector<std::jthread> threads;
  for (uint32_t t = 0; t < kTeams * kMembers; ++t) {
    threads.emplace_back([&, t] {
      Team& team = teams[t % kTeams];
      const uint32_t member = t / kTeams;
      const auto meet = [&] { team.meeting.arrive_and_wait(); };
      for (uint32_t block = t % kTeams; block < shape.blocks; block += kTeams) {
        if (member == 0) Dirty<Kernel>(block, &team.shared);
        // No member may begin before the shared memory is filled.
        meet();
        RunThreads<Kernel, 0>(block, member, kMembers, shape, arguments, team.shared, meet);
      }
    });
  }
}

template <class Kernel>
void LaunchOf(const Shape& shape, const void* from) {
  // Arguments are copied as bytes, and nothing initializes the shared memory of a block.
  static_assert(std::is_trivially_copyable_v<typename Kernel::Arguments>);
  static_assert(std::is_trivially_default_constructible_v<typename Kernel::Shared>);
  static_assert(sizeof(typename Kernel::Shared) <= 48 * 1024, "more than every device has");
  typename Kernel::Arguments arguments;
  std::memcpy(&arguments, from, sizeof(arguments));
  shape.order == LaunchOrder::kTogether ? LaunchTogether<Kernel>(shape, arguments)
                                        : LaunchInOrder<Kernel>(shape, arguments);
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
