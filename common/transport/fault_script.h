#ifndef BANDONEON_COMMON_TRANSPORT_FAULT_SCRIPT_H_
#define BANDONEON_COMMON_TRANSPORT_FAULT_SCRIPT_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <random>
#include <vector>

#include "common/wire/frame.h"

namespace bdn {

enum class Fault { kNone, kDrop, kDuplicate, kHold, kCorrupt, kCut };

// What is to happen to the frames of a network that is scripted: rules, in the order they were
// made, and chance for those that no rule matches. Not thread-safe.
class FaultScript {
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
    rules_.push_back({std::move(match), fault, times});
  }
  // The same from here on for the same seed and calls.
  void Randomize(uint64_t seed, const Chances& chances) {
    random_.seed(seed);
    chances_ = chances;
  }
  void Clear() {
    rules_.clear();
    chances_ = {};
  }

  // What happens to the next frame; uses up one of its rule's times.
  Fault Choose(const FrameHeader& header);
  // Which of `size` pending events is next. REQUIRES: size > 0.
  size_t ChooseNext(size_t size) { return chances_.reorder ? random_() % size : 0; }
  // A copy of the payload with one bit flipped. REQUIRES: not empty.
  Buffer Corrupt(const Buffer& payload);

 private:
  struct Rule {
    Match match;
    Fault fault;
    int times;
  };

  std::vector<Rule> rules_;
  std::mt19937_64 random_;
  Chances chances_;
};

}  // namespace bdn

#endif  // BANDONEON_COMMON_TRANSPORT_FAULT_SCRIPT_H_
