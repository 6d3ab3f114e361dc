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

// Returns "worker 11, worker 13" for the local ranks {1, 3}, where `first` is the rank of the
// host's first process.
std::string WorkerNames(const std::vector<int>& processes, Rank first);

// A table of the calls that a host makes once, when each of its processes has made it:
// declarations, broadcasts, barriers, leaving. A process that has made the call waits for the
// others until its own deadline. A state machine; not thread-safe.
class HostGather {
 public:
  struct Member {
    int process = 0;    // local rank
    uint64_t call = 0;  // the process's number of its call
    absl::Time deadline;
  };
  using Members = std::vector<Member>;  // by local rank, when all have arrived

  // `first` is the rank of the host's first process, by which errors name processes.
  HostGather(int processes, Rank first) : processes_(processes), first_(first) {}

  // Notes that a process has made the call of this name, such as "barrier 'b'". Returns all members
  // if it is the last. InvalidArgument: the process already waits there. Aborted: another process
  // is leaving and will not make the call.
  absl::StatusOr<std::optional<Members>> Arrive(const std::string& name, const Member& member);
  // Does what Arrive does, where the n-th call of each process belongs to the n-th calls of the
  // others.
  absl::StatusOr<std::optional<Members>> ArriveNext(const std::string& kind, const Member& member);

  // A member whose wait ends with an error.
  struct Ended {
    Member member;
    absl::Status status;
    bool was_leaving = false;  // the call was kLeaving
  };
  // Removes and returns the members whose deadline has come: they count as not having made the
  // call.
  std::vector<Ended> Expire(absl::Time now);
  absl::Time NextDeadline() const;
  // Notes that a process will make no more calls but its leaving. Returns the members that wait for
  // it elsewhere.
  std::vector<Ended> OnLeaving(int process);
  // Removes and returns all members, with `status`.
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

// The name of the call by which processes leave. Processes that are leaving are not missed there.
inline constexpr char kLeaving[] = "leaving";

}  // namespace bdn

#endif  // BANDONEON_WORKER_HOST_HOST_GATHER_H_
