#include "scheduler/curve.h"

#include <cmath>
#include <limits>
#include <utility>

namespace bdn {

void Curve::Add(Step step, double value) {
  Sum& sum = sums_[step >> shift_];
  // Finite values may still add up to infinity, which is shown as a gap, too.
  sum.total += std::isfinite(value) ? value : std::numeric_limits<double>::quiet_NaN();
  ++sum.count;
  // The loop ends: with one bit of the step left there are at most two points.
  while (sums_.size() > kMostPoints) Halve();
}

void Curve::Halve() {
  ++shift_;
  std::map<uint64_t, Sum> halved;
  for (const auto& [place, sum] : sums_) {
    Sum& both = halved[place >> 1];
    both.total += sum.total;
    both.count += sum.count;
  }
  sums_ = std::move(halved);
}

std::vector<Curve::Point> Curve::Points() const {
  std::vector<Point> points;
  points.reserve(sums_.size());
  for (const auto& [place, sum] : sums_) {
    const double mean = sum.total / static_cast<double>(sum.count);
    points.push_back(
        {place << shift_, std::isfinite(mean) ? mean : std::numeric_limits<double>::quiet_NaN()});
  }
  return points;
}

}  // namespace bdn
