#ifndef BANDONEON_SCHEDULER_LOST_SERVERS_H_
#define BANDONEON_SCHEDULER_LOST_SERVERS_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "common/cluster/control_plane.h"
#include "scheduler/declarations.h"
#include "scheduler/job_event.h"
#include "scheduler/job_options.h"
#include "scheduler/membership_table.h"
#include "scheduler/placer.h"
#include "scheduler/roster.h"
#include "scheduler/waiting_calls.h"

namespace bdn {

// The part of a job that knows what becomes of a server that is lost: whether the job goes on, who
// has its keys then, which servers wait for a vacant place, until when a job without servers waits
// for one, and which end of a silent link is out. It decides and changes the table; the job, its
// owner, records the events first, answers calls and tells the nodes. Not thread-safe. Time is an
// argument.
class LostServers {
 public:
  // Borrows all. `is_logged`: somebody starts again whatever ends of the job.
  LostServers(const JobOptions& options, bool is_logged, const Declarations& declarations,
              MembershipTable* table)
      : options_(options), is_logged_(is_logged), declarations_(declarations), table_(*table) {}

  // Returns whether the job may go on without a server, and take another one.
  bool may_lose() const { return options_.config.replay_steps > 0; }
  // Returns whether the job may go on without one of the servers that are here.
  bool MayGoOnWithoutOne() const;
  // Returns whether another server, one that is here or waits, can answer for this one's keys.
  bool HasOther(const NodeInfo& server) const;

  // ---- the servers of the membership. Each call begins the next epoch, and returns how the job
  // goes on in it: "with 1 of 2 servers: without server 1, which ...". OnChanged is to follow.

  // Takes a server out: others answer for its keys. REQUIRES: MayGoOnWithoutOne().
  std::string TakeOut(const NodeInfo& gone, const std::string& how);
  // Lets a server join, in the place of one that is lost or of none. REQUIRES: the table CanAdmit.
  std::string AddServer(const ServerJoined& event, absl::Time now);
  // Returns the keys for which a server answers, summed up. Slots that have moved count for a
  // sixteenth of their home's keys each.
  Placer::Load LoadOf(NodeId server) const;

  // ---- a job without servers

  // Notes that a server went or came.
  void OnChanged(absl::Time now);
  // The end of the wait for a server; infinite where the job has one.
  absl::Time deadline() const { return deadline_; }
  // Lets a wait for a server begin anew, because another scheduler has taken the job up.
  void RenewDeadline(absl::Time now);
  // Ends the wait: the work is done.
  void DropDeadline() { deadline_ = absl::InfiniteFuture(); }
  // The error of a job whose servers are all lost, and the server that joined last.
  struct Loss {
    std::string why;
    const NodeInfo* last = nullptr;  // of the table
  };
  Loss LossOfAll() const;

  // ---- the servers that wait for a vacant place, by their numbers, which rise

  uint64_t NewNumber() { return next_number_++; }
  void Await(uint64_t number, const JoinRequest& request, CallId call_id) {
    waiting_[number] = {request, call_id};
  }
  void GiveUp(uint64_t number) { waiting_.erase(number); }
  void ForgetWaiting() { waiting_.clear(); }
  // Returns the number of the first server that waits and may have this rank; of rank -1, the first
  // for which a rank is vacant. 0: there is none.
  uint64_t FindWaiting(Rank rank) const;
  // Returns the event by which this one joins, in the place of a server that is lost (its node and
  // `how`), or of none.
  ServerJoined JoinOf(uint64_t number, NodeId lost, const std::string& how) const;
  // Returns the calls of this one, which waits no more. A server that has asked twice is the same
  // one in both calls.
  std::vector<CallId> TakeCalls(uint64_t number);
  // Returns the calls of all of them, none of which waits any more.
  std::vector<CallId> TakeAllCalls();
  // Returns what a server waits for that asks to join the job now.
  std::string Wait() const;

  // ---- silent links

  // Takes a worker's report of the servers that do not answer it. Returns the node that is to be
  // taken out because of it, if one is: where the worker has had no answer for link-timeout, the
  // server if most workers of the roster have none, else the worker if the job may lose it, else
  // the server. has_heard_all: all workers of the roster have said whether they have answers;
  // before that no worker is taken out.
  std::optional<NodeLost> OnUnheard(const NodeInfo& worker, const std::vector<NodeWait>& servers,
                                    const Roster& roster, bool may_lose_worker, bool has_heard_all,
                                    absl::Time now);

 private:
  struct Waiting {
    JoinRequest request;
    CallId call_id = 0;
  };
  // The servers that do not answer a worker, as it said last, and when.
  struct Unheard {
    std::vector<NodeWait> servers;
    absl::Time at;
  };

  HomeBytes BytesOfHomes() const;
  // Returns "with 1 of 2 servers".
  std::string Present() const;
  // Returns how many workers of the roster had no answer of the server lately.
  size_t CountUnheard(NodeId server, const Roster& roster, absl::Time now) const;

  const JobOptions& options_;
  const bool is_logged_;
  const Declarations& declarations_;
  MembershipTable& table_;
  std::map<uint64_t, Waiting> waiting_;
  uint64_t next_number_ = 1;
  absl::Time deadline_ = absl::InfiniteFuture();
  std::map<NodeId, Unheard> unheard_;  // by worker
};

}  // namespace bdn

#endif  // BANDONEON_SCHEDULER_LOST_SERVERS_H_
