#ifndef BANDONEON_WORKER_HOST_HOST_GATHER_H_
#define BANDONEON_WORKER_HOST_HOST_GATHER_H_

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/ids.h"

namespace bdn {

// "worker 11, worker 13" for {1, 3}: processes by their ranks, of which the host's first is `first`.
std::string WorkerNames(const std::vector<int>& processes, Rank first);

// Calls that the host makes once, when each of its processes has made it: declarations, broadcasts,
// barriers, leaving. Who comes waits for the others until its own deadline. A state machine; not
// thread-safe.
class HostGather {
 public:
  struct Member {
    int process = 0;    // local rank
    uint64_t call = 0;  // the process's number
    absl::Time deadline;
  };
  using Members = std::vector<Member>;  // by local rank, where all have come

  // Names processes by their ranks, of which the host's first is `first`.
  HostGather(int processes, Rank first) : processes_(processes), first_(first) {}

  // A process comes to the call of this name, as "barrier 'b'"; all who have come, once it is the last.
  // InvalidArgument: it is waiting there already. Aborted: another is leaving and will not come.
  absl::StatusOr<std::optional<Members>> Arrive(const std::string& name, const Member& member);
  // As Arrive, where the n-th of each process belongs to the n-th of the others.
  absl::StatusOr<std::optional<Members>> ArriveNext(const std::string& kind, const Member& member);

  struct Ended {
    Member member;
    absl::Status status;
    bool was_leaving = false;  // the call was kLeaving
  };
  // Those whose deadline has come; they have not come to the call.
  std::vector<Ended> Expire(absl::Time now);
  absl::Time NextDeadline() const;
  // The process will come to nothing more but its leaving: who waits for it elsewhere.
  std::vector<Ended> OnLeaving(int process);
  // Everybody, who is told `status`.
  std::vector<Ended> TakeAll(const absl::Status& status);

 private:
  struct Gathering {
    std::map<int, Member> members;
    std::string kind;  // of ArriveNext; else empty
  };
  std::string MissingOf(const Gathering& gathering) const;
  absl::StatusOr<std::optional<Members>> Join(const std::string& name, const std::string& kind,
                                              const Member& member);

  const int processes_;
  const Rank first_;
  std::map<std::string, Gathering> open_;
  std::map<std::string, std::map<int, uint64_t>> counts_;  // by kind and process
  std::set<int> leaving_;
};

// What leaving is called: nobody who is leaving is missed there.
inline constexpr char kLeaving[] = "leaving";

}  // namespace bdn

#endif  // BANDONEON_WORKER_HOST_HOST_GATHER_H_
