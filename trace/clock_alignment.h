#ifndef BANDONEON_TRACE_CLOCK_ALIGNMENT_H_
#define BANDONEON_TRACE_CLOCK_ALIGNMENT_H_

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace bdn {

// An event at one clock that came before an event at another one: a push is sent before it arrives.
// Clocks are numbered from 0.
struct ClockBound {
  uint32_t earlier = 0;
  uint32_t later = 0;
  int64_t earlier_ns = 0;  // by the clock `earlier`
  int64_t later_ns = 0;    // by the clock `later`
};

// The way from one clock to the common one, clock 0. A value.
class ClockMap {
 public:
  // What the map rests on.
  enum class Basis : uint8_t { kSameClock, kExchanges, kTimeOfDay };
  // An offset of this clock from the common one, without its drift. The true one differs by at most
  // the uncertainty.
  struct Knot {
    int64_t begin_ns = 0;  // the first and last times, by this clock, of what it was found from
    int64_t end_ns = 0;
    int64_t offset_ns = 0;
    int64_t uncertainty_ns = 0;

    int64_t At() const { return begin_ns + (end_ns - begin_ns) / 2; }
  };

  ClockMap() = default;  // the common clock itself
  ClockMap(Basis basis, std::vector<Knot> knots, int64_t origin_ns, double drift);

  // Returns the time of the common clock.
  int64_t ToCommon(int64_t ns) const;
  Basis basis() const { return basis_; }
  // The drift against the common clock, in seconds a second.
  double drift() const { return drift_; }
  int64_t OffsetNs() const;       // at the first knot
  int64_t UncertaintyNs() const;  // the largest one of a knot; 0 of the same clock
  // Returns times of this clock at which it seems to have jumped: a host slept, or exchanges of a
  // window contradict each other.
  const std::vector<int64_t>& jumps() const { return jumps_; }
  void AddJump(int64_t at_ns) { jumps_.push_back(at_ns); }

 private:
  Basis basis_ = Basis::kSameClock;
  std::vector<Knot> knots_;  // by time
  int64_t origin_ns_ = 0;    // where the drift is 0
  double drift_ = 0;
  std::vector<int64_t> jumps_;
};

// Estimates the ways of so many clocks to clock 0 from what came before what. The bounds of an
// exchange, in both directions, follow each other. Windows of 10 s are solved as difference
// constraints over all clocks, and the middle of what they leave is taken; before, each clock's
// drift is taken out, the middle of those that fit. Between windows the offset goes on a line, but
// where the clock has jumped. `time_of_day[i]` is what clock i lacks to the
// time of day of its machine, for clocks that no exchanges tie to clock 0.
std::vector<ClockMap> AlignClocks(uint32_t clocks, std::span<const ClockBound> bounds,
                                  std::span<const std::optional<int64_t>> time_of_day);

}  // namespace bdn

#endif  // BANDONEON_TRACE_CLOCK_ALIGNMENT_H_
