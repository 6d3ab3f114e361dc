#ifndef BANDONEON_SCHEDULER_CURVE_H_
#define BANDONEON_SCHEDULER_CURVE_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "common/base/ids.h"

namespace bdn {

// What workers reported under one name, over the steps: a point is the mean of what all of them said of its
// steps. Begins with a point a step; whenever there would be more than kMostPoints, twice as many steps share
// one. A point with a value that is not finite is NaN. Not thread-safe.
class Curve {
 public:
  static constexpr size_t kMostPoints = 1000;

  struct Point {
    Step step = 0;  // the first of its steps
    double value = 0;
  };

  // In any order. O(log kMostPoints), but for the halving.
  void Add(Step step, double value);

  std::vector<Point> Points() const;  // by step
  uint64_t steps_per_point() const { return uint64_t{1} << shift_; }

 private:
  struct Sum {
    double total = 0;  // NaN or infinite stays so
    uint64_t count = 0;
  };

  void Halve();

  int shift_ = 0;
  std::map<uint64_t, Sum> sums_;  // by step >> shift_
};

}  // namespace bdn

#endif  // BANDONEON_SCHEDULER_CURVE_H_
