#include "trace/clock_alignment.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <map>
#include <utility>

namespace bdn {
namespace {

constexpr int64_t kShortWindowNs = 1'000'000'000;
constexpr int64_t kLongWindowNs = 10'000'000'000;
constexpr double kLikelyDrift = 1e-4;
constexpr int64_t kContradictionNs = 200'000;
constexpr double kMaxDrift = 1e-3;     // more than any clock has: it jumped instead
constexpr size_t kDriftWindows = 200;  // all pairs of them are compared
constexpr int64_t kUnbounded = std::numeric_limits<int64_t>::max() / 4;

// What one window says about each clock's offset from clock 0, by the clock.
struct Interval {
  int64_t low = -kUnbounded;
  int64_t high = kUnbounded;

  bool IsBounded() const { return low > -kUnbounded && high < kUnbounded; }
  int64_t Middle() const { return low + (high - low) / 2; }
};

// The offsets as they were estimated so far, by which bounds are sorted into windows and freed of
// drift.
struct Estimate {
  std::vector<int64_t> offset_ns;
  std::vector<double> drift;
  std::vector<bool> is_known;
  int64_t origin_ns = 0;  // of the common clock

  int64_t Common(uint32_t clock, int64_t ns) const { return ns - offset_ns[clock]; }
  // Returns the time without the drift that the clock has gathered since the origin.
  int64_t WithoutDrift(uint32_t clock, int64_t ns) const {
    return ns - static_cast<int64_t>(std::llround(
                    drift[clock] * static_cast<double>(Common(clock, ns) - origin_ns)));
  }
};

using Pair = std::pair<uint32_t, uint32_t>;
// The most by which the second clock of a pair can be ahead of the first one.
using Limits = std::map<Pair, int64_t>;

// What the bounds of some time say.
struct Window {
  Limits limits;
  int64_t first_ns = kUnbounded;  // of the common clock, as the bounds' times
  int64_t last_ns = -kUnbounded;
};

// Returns the windows by their numbers.
std::map<int64_t, Window> WindowsOf(const Estimate& estimate, std::span<const ClockBound> bounds,
                                    int64_t window_ns) {
  std::map<int64_t, Window> windows;
  for (const ClockBound& bound : bounds) {
    // Both bounds of an exchange belong to one window, also where one of the clocks jumps. The
    // common clock, which has the lowest number, never does.
    const auto [clock, ns] = bound.earlier < bound.later
                                 ? std::pair(bound.earlier, bound.earlier_ns)
                                 : std::pair(bound.later, bound.later_ns);
    if (!estimate.is_known[clock]) continue;
    const int64_t common = estimate.Common(clock, ns);
    const int64_t at = common - estimate.origin_ns;
    Window& window = windows[at >= 0 ? at / window_ns : -1 - (-1 - at) / window_ns];
    window.first_ns = std::min(window.first_ns, common);
    window.last_ns = std::max(window.last_ns, common);
    const int64_t most = estimate.WithoutDrift(bound.later, bound.later_ns) -
                         estimate.WithoutDrift(bound.earlier, bound.earlier_ns);
    const auto [limit, is_new] = window.limits.emplace(Pair{bound.earlier, bound.later}, most);
    if (!is_new) limit->second = std::min(limit->second, most);
  }
  return windows;
}

// Whether an offset changed by more than clocks drift.
bool IsStep(const ClockMap::Knot& before, const ClockMap::Knot& after) {
  const double drifted = kMaxDrift / 10 * static_cast<double>(std::abs(after.At() - before.At()));
  return static_cast<double>(std::abs(after.offset_ns - before.offset_ns)) >
         static_cast<double>(before.uncertainty_ns + after.uncertainty_ns) + drifted;
}

// Returns the shortest way from clock 0 to each clock over the limits, or from each to clock 0.
// False where they contradict each other.
bool ShortestWays(uint32_t clocks, const Limits& limits, bool is_back, std::vector<int64_t>* ways) {
  ways->assign(clocks, kUnbounded);
  (*ways)[0] = 0;
  for (uint32_t round = 0; round <= clocks; ++round) {
    bool has_changed = false;
    for (const auto& [pair, most] : limits) {
      const auto [from, to] = is_back ? Pair{pair.second, pair.first} : pair;
      if ((*ways)[from] >= kUnbounded || (*ways)[from] + most >= (*ways)[to]) continue;
      (*ways)[to] = (*ways)[from] + most;
      has_changed = true;
    }
    if (!has_changed) return true;
  }
  return false;
}

// Solves one window. Where its limits contradict each other, `contradicted` is the clock in most of
// the contradictions of two clocks, if there are some.
std::optional<std::vector<Interval>> Solve(uint32_t clocks, const Limits& limits,
                                           std::optional<uint32_t>* contradicted) {
  std::vector<int64_t> highs;
  std::vector<int64_t> lows;
  if (ShortestWays(clocks, limits, false, &highs) && ShortestWays(clocks, limits, true, &lows)) {
    std::vector<Interval> intervals(clocks);
    for (uint32_t clock = 0; clock < clocks; ++clock) {
      intervals[clock] = {lows[clock] >= kUnbounded ? -kUnbounded : -lows[clock], highs[clock]};
    }
    return intervals;
  }
  std::vector<int> times(clocks, 0);
  for (const auto& [pair, most] : limits) {
    const auto back = limits.find({pair.second, pair.first});
    // Less is drift that was not taken out.
    if (back == limits.end() || most + back->second >= -kContradictionNs) continue;
    ++times[pair.first];
    ++times[pair.second];
  }
  // Of two clocks that contradict each other the one that is not the common clock is named.
  const auto worst = std::max_element(times.rbegin(), times.rend()) - times.rbegin();
  const auto clock = static_cast<uint32_t>(static_cast<ptrdiff_t>(clocks) - 1 - worst);
  if (times[clock] > 0) *contradicted = clock;
  return std::nullopt;
}

// Ties clocks to clock 0 by the first exchange of each two of them.
Estimate FirstEstimate(uint32_t clocks, std::span<const ClockBound> bounds) {
  Estimate estimate{.offset_ns = std::vector<int64_t>(clocks, 0),
                    .drift = std::vector<double>(clocks, 0),
                    .is_known = std::vector<bool>(clocks, false)};
  estimate.is_known[0] = true;
  std::map<Pair, int64_t> first;
  for (const ClockBound& bound : bounds) {
    first.emplace(Pair{bound.earlier, bound.later}, bound.later_ns - bound.earlier_ns);
  }
  for (bool has_changed = true; has_changed;) {
    has_changed = false;
    for (const auto& [pair, most] : first) {
      const auto [from, to] = pair;
      const auto back = first.find({to, from});
      if (back == first.end() || !estimate.is_known[from] || estimate.is_known[to]) continue;
      // The offset is at most `most`, and at least the negative of the way back.
      estimate.offset_ns[to] = estimate.offset_ns[from] + (most - back->second) / 2;
      estimate.is_known[to] = true;
      has_changed = true;
    }
  }
  bool is_first = true;
  for (const ClockBound& bound : bounds) {
    if (!estimate.is_known[bound.earlier]) continue;
    const int64_t at = estimate.Common(bound.earlier, bound.earlier_ns);
    estimate.origin_ns = is_first ? at : std::min(estimate.origin_ns, at);
    is_first = false;
  }
  return estimate;
}

// An interval of a clock's offset at a time, in seconds of the common clock.
struct TimedInterval {
  double at = 0;
  Interval interval;
};

// Returns the parts of the intervals between jumps: from one to the next no drift leads.
std::vector<std::span<const TimedInterval>> BetweenJumps(
    const std::vector<TimedInterval>& intervals) {
  std::vector<std::span<const TimedInterval>> parts;
  size_t first = 0;
  for (size_t i = 1; i <= intervals.size(); ++i) {
    if (i < intervals.size()) {
      const auto& [before_at, before] = intervals[i - 1];
      const auto& [at, now] = intervals[i];
      const double drifted = kMaxDrift * 1e9 * (at - before_at);
      if (static_cast<double>(now.low - before.high) <= drifted &&
          static_cast<double>(before.low - now.high) <= drifted) {
        continue;
      }
    }
    parts.push_back(std::span(intervals).subspan(first, i - first));
    first = i;
  }
  return parts;
}

// Returns the middle of the drifts with which a line goes through all intervals of each part, and
// which clocks have; where none does, the median of the slopes between intervals that are far from
// each other.
double DriftThrough(const std::vector<TimedInterval>& intervals) {
  double least = -kMaxDrift;
  double most = kMaxDrift;
  std::vector<double> slopes;
  for (const auto part : BetweenJumps(intervals)) {
    const size_t half = part.size() / 2;
    for (size_t i = 0; i < part.size(); ++i) {
      for (size_t j = i + 1; j < part.size(); ++j) {
        const double seconds = part[j].at - part[i].at;
        const auto slope = [seconds](int64_t later, int64_t earlier) {
          return static_cast<double>(later - earlier) * 1e-9 / seconds;
        };
        least = std::max(least, slope(part[j].interval.low, part[i].interval.high));
        most = std::min(most, slope(part[j].interval.high, part[i].interval.low));
        if (j == i + half) {
          slopes.push_back(slope(part[j].interval.Middle(), part[i].interval.Middle()));
        }
      }
    }
  }
  const double likely_least = std::max(least, -kLikelyDrift);
  const double likely_most = std::min(most, kLikelyDrift);
  if (likely_least <= likely_most) return (likely_least + likely_most) / 2;
  if (least <= most) return std::clamp(0.0, least, most);
  if (slopes.empty()) return 0;
  const auto middle = slopes.begin() + static_cast<ptrdiff_t>(slopes.size() / 2);
  std::nth_element(slopes.begin(), middle, slopes.end());
  return std::clamp(*middle, -kMaxDrift, kMaxDrift);
}

void EstimateDrifts(uint32_t clocks, std::span<const ClockBound> bounds, Estimate* estimate) {
  const auto windows = WindowsOf(*estimate, bounds, kShortWindowNs);
  const size_t stride = 1 + windows.size() / kDriftWindows;
  std::vector<std::vector<TimedInterval>> intervals(clocks);
  size_t place = 0;
  for (const auto& [number, window] : windows) {
    if (place++ % stride != 0) continue;
    std::optional<uint32_t> contradicted;
    const auto solved = Solve(clocks, window.limits, &contradicted);
    if (!solved) continue;
    for (uint32_t clock = 1; clock < clocks; ++clock) {
      if (!(*solved)[clock].IsBounded()) continue;
      intervals[clock].push_back({static_cast<double>(number), (*solved)[clock]});
    }
  }
  for (uint32_t clock = 1; clock < clocks; ++clock) {
    estimate->drift[clock] = DriftThrough(intervals[clock]);
  }
}

// The knots and jumps of all clocks, from windows of both lengths.
class KnotMaker {
 public:
  KnotMaker(uint32_t clocks, const Estimate& estimate, std::span<const ClockBound> bounds)
      : clocks_(clocks),
        estimate_(estimate),
        short_(WindowsOf(estimate, bounds, kShortWindowNs)),
        knots(clocks),
        jumps(clocks) {
    constexpr int64_t kRatio = kLongWindowNs / kShortWindowNs;
    for (const auto& [number, window] : WindowsOf(estimate, bounds, kLongWindowNs)) {
      if (Add(window, /*names_jumps=*/false)) continue;
      // Clocks drifted against each other, or something happened within: then the seconds before
      // and after it are sound.
      for (auto part = short_.lower_bound(number * kRatio);
           part != short_.end() && part->first < (number + 1) * kRatio; ++part) {
        Add(part->second, /*names_jumps=*/true);
      }
    }
    for (uint32_t clock = 1; clock < clocks; ++clock) FindSteps(clock);
  }

 private:
  bool Add(const Window& window, bool names_jumps) {
    std::optional<uint32_t> contradicted;
    const auto solved = Solve(clocks_, window.limits, &contradicted);
    if (!solved) {
      if (contradicted && names_jumps) {
        jumps[*contradicted].push_back(window.first_ns + estimate_.offset_ns[*contradicted]);
      }
      return false;
    }
    for (uint32_t clock = 1; clock < clocks_; ++clock) {
      const Interval& interval = (*solved)[clock];
      if (!interval.IsBounded()) continue;
      knots[clock].push_back({.begin_ns = window.first_ns + interval.Middle(),
                              .end_ns = window.last_ns + interval.Middle(),
                              .offset_ns = interval.Middle(),
                              .uncertainty_ns = (interval.high - interval.low + 1) / 2});
    }
    return true;
  }

  // A window may be sound, and the next one too, and yet no clock gets from one to the other.
  void FindSteps(uint32_t clock) {
    auto& of_clock = knots[clock];
    std::sort(of_clock.begin(), of_clock.end(),
              [](const auto& a, const auto& b) { return a.At() < b.At(); });
    for (size_t i = 1; i < of_clock.size(); ++i) {
      if (IsStep(of_clock[i - 1], of_clock[i])) jumps[clock].push_back(of_clock[i].begin_ns);
    }
  }

  const uint32_t clocks_;
  const Estimate& estimate_;
  const std::map<int64_t, Window> short_;

 public:
  std::vector<std::vector<ClockMap::Knot>> knots;
  std::vector<std::vector<int64_t>> jumps;
};

}  // namespace

ClockMap::ClockMap(Basis basis, std::vector<Knot> knots, int64_t origin_ns, double drift)
    : basis_(basis), knots_(std::move(knots)), origin_ns_(origin_ns), drift_(drift) {}

int64_t ClockMap::ToCommon(int64_t ns) const {
  if (knots_.empty()) return ns;
  const int64_t drifted = std::llround(drift_ * static_cast<double>(ns - origin_ns_));
  const auto after = std::upper_bound(knots_.begin(), knots_.end(), ns,
                                      [](int64_t at, const Knot& knot) { return at < knot.At(); });
  if (after == knots_.begin()) return ns - drifted - after->offset_ns;
  const auto before = std::prev(after);
  if (after == knots_.end()) return ns - drifted - before->offset_ns;
  if (IsStep(*before, *after)) {
    return ns - drifted - (ns <= before->end_ns ? before : after)->offset_ns;
  }
  const double share =
      static_cast<double>(ns - before->At()) / static_cast<double>(after->At() - before->At());
  const int64_t step =
      std::llround(share * static_cast<double>(after->offset_ns - before->offset_ns));
  return ns - drifted - before->offset_ns - step;
}

int64_t ClockMap::OffsetNs() const { return knots_.empty() ? 0 : knots_.front().offset_ns; }

int64_t ClockMap::UncertaintyNs() const {
  int64_t most = 0;
  for (const Knot& knot : knots_) most = std::max(most, knot.uncertainty_ns);
  return most;
}

std::vector<ClockMap> AlignClocks(uint32_t clocks, std::span<const ClockBound> bounds,
                                  std::span<const std::optional<int64_t>> time_of_day) {
  std::vector<ClockMap> maps(clocks);
  if (clocks <= 1) return maps;
  Estimate estimate = FirstEstimate(clocks, bounds);
  EstimateDrifts(clocks, bounds, &estimate);
  KnotMaker made(clocks, estimate, bounds);
  for (uint32_t clock = 1; clock < clocks; ++clock) {
    auto& knots = made.knots[clock];
    if (!knots.empty()) {
      maps[clock] = ClockMap(ClockMap::Basis::kExchanges, std::move(knots),
                             estimate.origin_ns + estimate.offset_ns[clock], estimate.drift[clock]);
    } else {
      // Without an exchange, and without a time of day as well, nothing better is known than 0.
      const auto own = time_of_day[clock];
      const auto common = time_of_day[0];
      const int64_t offset = own && common ? *common - *own : estimate.offset_ns[clock];
      maps[clock] = ClockMap(ClockMap::Basis::kTimeOfDay, {{.offset_ns = offset}}, 0, 0);
    }
    for (const int64_t at : made.jumps[clock]) maps[clock].AddJump(at);
  }
  return maps;
}

}  // namespace bdn
