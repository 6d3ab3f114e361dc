#ifndef BANDONEON_COMMON_BASE_PAUSE_WATCH_H_
#define BANDONEON_COMMON_BASE_PAUSE_WATCH_H_

#include "absl/time/time.h"

namespace bdn {

// A state machine that notices when this process itself was held up: stopped by a signal, paused
// with its machine, or left without a processor for long. Omissions of others during that time must
// not be held against them. Not thread-safe.
class PauseWatch {
 public:
  // The owner must call OnAwake at least once in each `interval`.
  explicit PauseWatch(absl::Duration interval) : interval_(interval) {}

  // Returns how long the process was held up before `now`: zero where the last call is at most
  // twice the interval ago, and otherwise all of the time since that call, as it is not known how
  // much of it the process ran.
  absl::Duration OnAwake(absl::Time now) {
    const absl::Duration gap = now - last_;
    const bool is_first = last_ == absl::InfinitePast();
    last_ = now;
    return is_first || gap <= 2 * interval_ ? absl::ZeroDuration() : gap;
  }
  // Returns when OnAwake is to be called again.
  absl::Time NextTime() const { return last_ + interval_; }

 private:
  const absl::Duration interval_;
  absl::Time last_ = absl::InfinitePast();
};

// Makes the watch of a process that watches leases of this length: a tenth of a lease is its
// interval.
inline PauseWatch PauseWatchOfLeases(absl::Duration lease) { return PauseWatch(lease / 10); }

}  // namespace bdn

#endif  // BANDONEON_COMMON_BASE_PAUSE_WATCH_H_
