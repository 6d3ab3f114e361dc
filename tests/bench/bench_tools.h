#ifndef BANDONEON_TESTS_BENCH_BENCH_TOOLS_H_
#define BANDONEON_TESTS_BENCH_BENCH_TOOLS_H_

#include <algorithm>
#include <cstddef>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "common/base/mutex.h"

// The parts that benchmarks of transports share.

namespace bdn {

// REQUIRES: there is a sample.
inline double Median(std::vector<double> samples) {
  std::sort(samples.begin(), samples.end());
  return samples[samples.size() / 2];
}

// A count that other threads raise and one thread waits for, which is woken once, when the count is
// reached. Thread-safe.
class Counter {
 public:
  void Increment() {
    MutexLock lock(&mu_);
    if (++count_ == awaited_) changed_.Signal();
  }
  void WaitFor(size_t count) {
    MutexLock lock(&mu_);
    awaited_ = count;
    while (count_ < count) changed_.Wait(&mu_);
  }

 private:
  Mutex mu_;
  CondVar changed_;
  size_t count_ ABSL_GUARDED_BY(mu_) = 0;
  size_t awaited_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace bdn

#endif  // BANDONEON_TESTS_BENCH_BENCH_TOOLS_H_
