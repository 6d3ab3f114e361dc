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

// Connections of which no call was let in yet: they may be anybody's, and each costs memory. There are at
// most `most`; for the next one the first is cut that has owed an answer for `least_silence`, or that has had
// `least_time` to show who it is. Thread-safe.
class Newcomers {
 public:
  struct Limits {
    size_t most = 512;  // of some 110 KiB each, in the middle of a handshake of TLS
    absl::Duration least_silence = absl::Milliseconds(500);
    absl::Duration least_time = absl::Seconds(2);
  };
  struct Counts {
    uint64_t ended = 0;  // by either side, without a call
    uint64_t cut = 0;    // for others
  };

  // `clock` is borrowed.
  Newcomers(const Limits& limits, const Clock* clock) : limits_(limits), clock_(clock) {}
  Newcomers(const Newcomers&) = delete;
  Newcomers& operator=(const Newcomers&) = delete;

  // A connection was taken. It is followed by a descriptor of its own, so that its owner may close `fd` at
  // any time, and another connection have that number.
  void Add(int fd);
  // Whether one more may be taken; cuts one for it.
  bool MakeRoom();
  // Forgets those that have ended.
  void Sweep();
  // A call of the connection from `peer`, as gRPC names it ("ipv4:10.0.0.1:4711"), was let in: it is no
  // newcomer any more. Or it was not: that is counted elsewhere, and it stays one.
  void OnCall(std::string_view peer, bool is_admitted);

  bool empty() const { return size_.load(std::memory_order_relaxed) == 0; }
  Counts counts() const;

 private:
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
  std::atomic<size_t> size_{0};  // publishes nothing: who reads it late does a little more
  mutable Mutex mu_;
  std::list<Newcomer> newcomers_ ABSL_GUARDED_BY(mu_);  // the oldest first
  absl::flat_hash_map<std::string, Place> by_peer_ ABSL_GUARDED_BY(mu_);
  Counts counts_ ABSL_GUARDED_BY(mu_);
};

}  // namespace bdn

#endif  // BANDONEON_COMMON_CLUSTER_NEWCOMERS_H_
