#ifndef BANDONEON_COMMON_CLUSTER_NEWCOMERS_H_
#define BANDONEON_COMMON_CLUSTER_NEWCOMERS_H_

#include <atomic>
#include <cstdint>
#include <list>
#include <string>
#include <string_view>

#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/file_descriptor.h"
#include "common/base/mutex.h"

namespace bdn {

// The connections of which no call was admitted yet. They may be anybody's, and each costs memory,
// so there are at most `most`; to make room for another, the oldest is cut that has owed an answer
// for `least_silence`, or has had `least_time` to show who it is. Thread-safe.
class Newcomers {
 public:
  // The limits, which tests change.
  struct Limits {
    size_t most = 512;  // of about 110 KiB each, in the middle of a TLS handshake
    absl::Duration least_silence = absl::Milliseconds(500);
    absl::Duration least_time = absl::Seconds(2);
  };
  // Counts of the newcomers that are gone, since the beginning.
  struct Counts {
    uint64_t ended = 0;  // ended by either side without a call
    uint64_t cut = 0;    // cut to make room for others
  };

  // Borrows `clock`.
  Newcomers(const Limits& limits, const Clock* clock) : limits_(limits), clock_(clock) {}
  Newcomers(const Newcomers&) = delete;
  Newcomers& operator=(const Newcomers&) = delete;

  // Adds a connection that was accepted. It is followed by a descriptor of its own, so that the
  // owner may close `fd` at any time, and another connection may get that number.
  void Add(int fd);
  // Returns whether one more may be accepted; cuts one to make room if necessary.
  bool MakeRoom();
  // Forgets the connections that have ended.
  void Sweep();
  // Notes a call by the connection from `peer`, as gRPC names it ("ipv4:10.0.0.1:4711"). If it was
  // admitted the connection is no newcomer any more; otherwise it stays one, and the refusal is
  // counted elsewhere.
  void OnCall(std::string_view peer, bool is_admitted);

  bool empty() const { return size_.load(std::memory_order_relaxed) == 0; }
  Counts counts() const;

 private:
  // One connection, with the second descriptor by which it is followed.
  struct Newcomer {
    FileDescriptor fd;
    std::string peer;
    absl::Time since;
    bool has_called = false;
  };
  using Place = std::list<Newcomer>::iterator;
  void Forget(Place place) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool MayCut(const Newcomer& newcomer) const;
  void SweepLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const Limits limits_;
  const Clock* const clock_;
  // Publishes no other memory: a reader that sees it late does a little more.
  std::atomic<size_t> size_{0};
  mutable Mutex mu_;
  std::list<Newcomer> newcomers_ ABSL_GUARDED_BY(mu_);  // oldest first
  absl::flat_hash_map<std::string, Place> by_peer_ ABSL_GUARDED_BY(mu_);
  Counts counts_ ABSL_GUARDED_BY(mu_);
};

}  // namespace bdn

#endif  // BANDONEON_COMMON_CLUSTER_NEWCOMERS_H_
