#ifndef BANDONEON_SCHEDULER_CURVE_H_
#define BANDONEON_SCHEDULER_CURVE_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "common/base/ids.h"

namespace bdn {

// The values that workers reported under one name, over the steps. A point is the mean of all
// values reported for its steps. At first each step has a point; whenever there would be more than
// kMostPoints, twice as many steps share one. A point with a value that is not finite is NaN. Not
// thread-safe.
class Curve {
 public:
  static constexpr size_t kMostPoints = 1000;

  struct Point {
    Step step = 0;  // the first of its steps
    double value = 0;
  };

  // Adds a value; steps may come in any order. O(log kMostPoints), except when points are joined.
  void Add(Step step, double value);

  std::vector<Point> Points() const;  // rising by step
  uint64_t steps_per_point() const { return uint64_t{1} << shift_; }

 private:
  // The values of one point.
  struct Sum {
    double total = 0;  // once NaN or infinite, it stays so
    uint64_t count = 0;
  };

  // Doubles the steps that share a point.
  void Halve();

  int shift_ = 0;
  std::map<uint64_t, Sum> sums_;  // by step >> shift_
};

}  // namespace bdn

#endif  // BANDONEON_SCHEDULER_CURVE_H_
