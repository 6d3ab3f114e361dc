#ifndef BANDONEON_COMMON_BASE_PAUSE_WATCH_H_
#define BANDONEON_COMMON_BASE_PAUSE_WATCH_H_

#include "absl/time/time.h"

namespace bdn {

// Notices that this process itself was held up: stopped by a signal, paused with its machine, or left
// without a processor for long. What others have not done meanwhile must not be held against them. A
// state machine; not thread-safe.
class PauseWatch {
 public:
  // Whoever has it promises to say OnAwake at least this often.
  explicit PauseWatch(absl::Duration interval) : interval_(interval) {}

  // How long the process was held up before `now`: all the time since the last call, of which nothing
  // is known, where that is more than twice the interval; else zero.
  absl::Duration OnAwake(absl::Time now) {
    const absl::Duration gap = now - last_;
    const bool is_first = last_ == absl::InfinitePast();
    last_ = now;
    return is_first || gap <= 2 * interval_ ? absl::ZeroDuration() : gap;
  }
  // When OnAwake is to be called again.
  absl::Time NextTime() const { return last_ + interval_; }

 private:
  const absl::Duration interval_;
  absl::Time last_ = absl::InfinitePast();
};

// Of whoever watches leases of this length.
inline PauseWatch PauseWatchOfLeases(absl::Duration lease) { return PauseWatch(lease / 10); }

}  // namespace bdn

#endif  // BANDONEON_COMMON_BASE_PAUSE_WATCH_H_
