#ifndef BANDONEON_WORKER_HOST_PEER_LEASE_H_
#define BANDONEON_WORKER_HOST_PEER_LEASE_H_

#include <algorithm>

#include "absl/time/time.h"
#include "common/base/pause_watch.h"

namespace bdn {

// A lease on the life of the peer at the other end of a HostChannel, which says once an interval
// that it is alive, as nodes do to the scheduler. (The scheduler sees only daemons, not their
// processes.) A state machine; not thread-safe.
class PeerLease {
 public:
  // Begins the lease. Before that, it never ends.
  void Begin(absl::Duration lease, absl::Time now) {
    lease_ = lease;
    has_begun_ = true;
    Heard(now);
  }
  // Notes that a message of the peer has come.
  void Heard(absl::Time now) {
    heard_ = now;
    if (has_begun_) end_ = now + lease_;
  }
  // Extends the lease by a pause in which this process was held up and could hear no peer.
  void WasHeldUp(absl::Duration pause) { end_ += pause; }
  // Ends the watch: the lease never ends from now on.
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

// A schedule of the signs of life that one end sends, and a watch for pauses of this process. Not
// thread-safe.
class LifeSigns {
 public:
  LifeSigns(absl::Duration interval, absl::Duration lease, absl::Time now)
      : interval_(interval), pauses_(PauseWatchOfLeases(lease)), next_(now) {
    pauses_.OnAwake(now);
  }
  // Does what PauseWatch::OnAwake does.
  absl::Duration OnAwake(absl::Time now) { return pauses_.OnAwake(now); }
  // Returns whether a sign is due. If so, the next one is due an interval later.
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
