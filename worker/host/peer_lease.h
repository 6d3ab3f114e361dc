#ifndef BANDONEON_WORKER_HOST_PEER_LEASE_H_
#define BANDONEON_WORKER_HOST_PEER_LEASE_H_

#include <algorithm>

#include "absl/time/time.h"
#include "common/base/pause_watch.h"

namespace bdn {

// What one end of a host's channel knows of the life of the other, which says that it is there once an
// interval: as nodes do to the scheduler, who sees daemons alone. A state machine; not thread-safe.
class PeerLease {
 public:
  // Before it nothing ends.
  void Begin(absl::Duration lease, absl::Time now) {
    lease_ = lease;
    has_begun_ = true;
    Heard(now);
  }
  // Whatever has come of it.
  void Heard(absl::Time now) {
    heard_ = now;
    if (has_begun_) end_ = now + lease_;
  }
  // This process itself was, and could hear nobody.
  void WasHeldUp(absl::Duration pause) { end_ += pause; }
  // It is not asked for any more.
  void End() {
    has_begun_ = false;
    end_ = absl::InfiniteFuture();
  }
  absl::Time end() const { return end_; }
  bool IsOver(absl::Time now) const { return now >= end_; }
  absl::Duration SilentFor(absl::Time now) const { return now - heard_; }

 private:
  absl::Duration lease_;
  bool has_begun_ = false;
  absl::Time heard_;
  absl::Time end_ = absl::InfiniteFuture();
};

// When an end says that it is there, and whether it was held up itself. Not thread-safe.
class LifeSigns {
 public:
  LifeSigns(absl::Duration interval, absl::Duration lease, absl::Time now)
      : interval_(interval), pauses_(PauseWatchOfLeases(lease)), next_(now) {
    pauses_.OnAwake(now);
  }
  // As PauseWatch::OnAwake.
  absl::Duration OnAwake(absl::Time now) { return pauses_.OnAwake(now); }
  // Whether it is time for one, which is the last for an interval.
  bool IsDue(absl::Time now) {
    if (now < next_) return false;
    next_ = now + interval_;
    return true;
  }
  absl::Time NextTime() const { return std::min(next_, pauses_.NextTime()); }

 private:
  const absl::Duration interval_;
  PauseWatch pauses_;
  absl::Time next_;
};

}  // namespace bdn

#endif  // BANDONEON_WORKER_HOST_PEER_LEASE_H_
