#ifndef BANDONEON_TESTS_SUPPORT_FAULT_SCRIPT_H_
#define BANDONEON_TESTS_SUPPORT_FAULT_SCRIPT_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <random>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "common/base/mutex.h"
#include "common/transport/loopback_core.h"
#include "common/wire/frame.h"

namespace bdn {

enum class Fault { kNone, kDrop, kDuplicate, kHold, kCorrupt, kCut };

// The faults of a scripted network: rules, in the order in which they were made, and chance for
// frames that no rule matches. Thread-safe.
class FaultScript final : public LoopbackFaults {
 public:
  using Match = std::function<bool(const FrameHeader& header)>;
  static constexpr int kAlways = std::numeric_limits<int>::max();

  // Chances between 0 and 1. They exclude each other.
  struct Chances {
    double drop = 0;
    double duplicate = 0;
    double corrupt = 0;
    bool reorder = false;  // any pending event may be next
  };

  void Add(Match match, Fault fault, int times) {
    MutexLock lock(&mu_);
    rules_.push_back({std::move(match), fault, times});
  }
  // The same from here on for the same seed and calls.
  void Randomize(uint64_t seed, const Chances& chances) {
    MutexLock lock(&mu_);
    random_.seed(seed);
    chances_ = chances;
  }
  void Clear() {
    MutexLock lock(&mu_);
    rules_.clear();
    chances_ = {};
  }

  // Uses up one of the times of the rule that the frame matches.
  Fate Decide(Frame* frame) override;
  size_t ChooseNext(size_t size) override;

 private:
  struct Rule {
    Match match;
    Fault fault;
    int times;
  };

  Fault Choose(const FrameHeader& header) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // A copy of the payload with one bit flipped. REQUIRES: not empty.
  Buffer Corrupt(const Buffer& payload) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  Mutex mu_;
  std::vector<Rule> rules_ ABSL_GUARDED_BY(mu_);
  std::mt19937_64 random_ ABSL_GUARDED_BY(mu_);
  Chances chances_ ABSL_GUARDED_BY(mu_);
};

}  // namespace bdn

#endif  // BANDONEON_TESTS_SUPPORT_FAULT_SCRIPT_H_
