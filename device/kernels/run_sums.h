#ifndef BANDONEON_DEVICE_KERNELS_RUN_SUMS_H_
#define BANDONEON_DEVICE_KERNELS_RUN_SUMS_H_

#include <cstdint>

#include "device/kernels/kernel_id.h"
#include "device/kernels/portable.h"
#include "device/kernels/source_elements.h"

// The sums that kernels/norm_kernels.h pins: sixteen lanes of float32 in each run of 1024 elements,
// joined in float64. Code that needs the sum of several runs adds them in order.

namespace bdn::device_kernels {

inline constexpr uint32_t kSumLanes = 16;
inline constexpr uint32_t kSumRun = 1024;

// The cutting of an array into blocks of `block` elements, and of these into runs, from their
// beginning.
struct RunLayout {
  uint32_t n;
  uint32_t block;

  // Returns the number of runs in each block but the last.
  BDN_DEVICE uint32_t RunsOfBlock() const { return RoundUpDivide(block, kSumRun); }
  BDN_DEVICE uint32_t RunLength() const { return Least(block, kSumRun); }
  BDN_DEVICE uint32_t NumBlocks() const { return n == 0 ? 0 : RoundUpDivide(n, block); }
  BDN_DEVICE uint32_t NumRuns() const {
    if (n == 0) return 0;
    return n / block * RunsOfBlock() + RoundUpDivide(n % block, kSumRun);
  }
  BDN_DEVICE uint32_t BlockEnd(uint32_t b) const { return Least(n, (b + 1) * block); }
  BDN_DEVICE uint32_t Begin(uint32_t run) const {
    return run / RunsOfBlock() * block + run % RunsOfBlock() * kSumRun;
  }
  BDN_DEVICE uint32_t End(uint32_t run) const {
    return Least(BlockEnd(run / RunsOfBlock()), Begin(run) + kSumRun);
  }
};

// A kernel that sets sums[k * number of runs + run] to the run's sum of |factor[k] * p|, or of the
// squares of these, and notes elements that are not finite. One pass; one block of threads for
// RunsTogether runs. REQUIRES: the length of blocks is a multiple of 32, or that of all elements.
struct SumRuns {
  static constexpr KernelId kId = KernelId::kSumRuns;
  static constexpr int kPhases = 3;
  static constexpr uint32_t kMostFactors = 3;
  static constexpr uint32_t kTogether = 2048;  // elements of the runs of one block of threads
  static constexpr uint32_t kMostRuns = kTogether / 32;

  struct Arguments {
    Source source;
    RunLayout layout;
    bool squares;
    uint32_t num_factors;
    float factor[kMostFactors];
    double* sums;
    EncodeResult* result;
  };
  struct Shared {
    float p[kTogether];
    float lane[kMostFactors * kMostRuns * kSumLanes];
  };

  BDN_DEVICE static uint32_t RunsTogether(const RunLayout& layout) {
    return Least(kMostRuns, kTogether / layout.RunLength());
  }

  template <int kPhase>
  BDN_DEVICE static void Run(const Thread& at, const Arguments& a, Shared& shared) {
    const uint32_t num_runs = a.layout.NumRuns();
    const uint32_t together = RunsTogether(a.layout);
    const uint32_t first = at.block * together;
    const uint32_t runs = Least(together, num_runs - first);
    const uint32_t length = a.layout.RunLength();
    if constexpr (kPhase == 0) {
      for (uint32_t j = at.thread; j < runs * length; j += at.threads) {
        const uint32_t run = first + j / length;
        const uint32_t i = a.layout.Begin(run) + j % length;
        if (i >= a.layout.End(run)) continue;
        shared.p[j] = Peek(a.source, i);
        if (!IsFinite(shared.p[j])) NoteNonFinite(a.source, i, a.result);
      }
    } else if constexpr (kPhase == 1) {
      // Item t is lane l of run r, with factor k.
      for (uint32_t t = at.thread; t < a.num_factors * runs * kSumLanes; t += at.threads) {
        const uint32_t r = t / kSumLanes % runs;
        const uint32_t count = a.layout.End(first + r) - a.layout.Begin(first + r);
        const float factor = a.factor[t / kSumLanes / runs];
        float sum = 0.0f;
        for (uint32_t j = t % kSumLanes; j < count; j += kSumLanes) {
          const float value = factor * shared.p[r * length + j];
          sum = sum + (a.squares ? value * value : FloatOf(MagnitudeBits(value)));
        }
        shared.lane[t] = sum;
      }
    } else {
      for (uint32_t t = at.thread; t < a.num_factors * runs; t += at.threads) {
        a.sums[t / runs * num_runs + first + t % runs] = JoinLanes(shared.lane + t * kSumLanes);
      }
    }
  }

  BDN_DEVICE static double JoinLanes(const float* lane) {
    double joined[kSumLanes];
    for (uint32_t l = 0; l < kSumLanes; ++l) joined[l] = lane[l];
    for (uint32_t width = kSumLanes / 2; width > 0; width /= 2) {
      for (uint32_t l = 0; l < width; ++l) joined[l] = joined[l] + joined[l + width];
    }
    return joined[0];
  }
};

BDN_DEVICE bool IsFinite(double value) { return value - value == 0.0; }

BDN_DEVICE double AddRuns(const double* sums, uint32_t begin, uint32_t end) {
  double total = 0.0;
  for (uint32_t run = begin; run < end; ++run) total = total + sums[run];
  return total;
}

}  // namespace bdn::device_kernels

#endif  // BANDONEON_DEVICE_KERNELS_RUN_SUMS_H_
