#ifndef BANDONEON_SCHEDULER_CANDIDATES_H_
#define BANDONEON_SCHEDULER_CANDIDATES_H_

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "common/cluster/control_plane.h"
#include "scheduler/job_event.h"
#include "scheduler/waiting_calls.h"

namespace bdn {

// The workers on their way into a job that runs: those that wait for a vacant rank; the candidates,
// which have one, that wait at a boundary; and those that were taken in, whose answers wait until
// all servers let them in. The job, its owner, knows the nodes and answers the calls. Not
// thread-safe.
class Candidates {
 public:
  // ---- workers that wait for a vacant rank, by their numbers, which rise
  struct Waiting {
    JoinRequest request;
    CallId call_id = 0;
  };
  void Await(uint64_t number, const JoinRequest& request, CallId call_id) {
    waiting_[number] = {request, call_id};
  }
  bool IsWaiting(uint64_t number) const { return waiting_.contains(number); }
  void GiveUp(uint64_t number) { waiting_.erase(number); }
  void ForgetWaiting() { waiting_.clear(); }
  const std::map<uint64_t, Waiting>& waiting() const { return waiting_; }
  // Returns the calls of this one, which waits no more. A worker that has asked twice is the same
  // one in both calls.
  std::vector<CallId> TakeCalls(uint64_t number);
  // Returns the calls of all of them, none of which waits any more.
  std::vector<CallId> TakeAllCalls();

  // ---- candidates at a boundary

  // Notes that a candidate has come, with the number of its arrival or 0.
  void Arrive(const std::string& boundary, NodeId node, uint64_t number);
  // Notes that a candidate has gone away again, or for good.
  void Withdraw(NodeId node) { ready_.erase(node); }
  // Returns those that wait at this boundary, with the numbers of their arrivals.
  std::map<NodeId, std::set<uint64_t>> ReadyAt(const std::string& boundary) const;
  size_t num_ready() const { return ready_.size(); }

  // ---- newcomers whose answers wait

  struct Entering {
    NodeId node = 0;
    std::string boundary;
    Met met;
    std::set<uint64_t> numbers;  // of its arrivals
  };
  // Notes that a candidate was taken in, and the answer to it.
  void Enter(Entering entering);
  bool IsEntering(NodeId node) const { return entering_.contains(node); }
  // Notes a further arrival of it. REQUIRES: IsEntering(node).
  void ArriveAgain(NodeId node, uint64_t number);
  // Forgets a newcomer that is lost.
  void Leave(NodeId node) { entering_.erase(node); }
  // Returns those of epochs up to this one, which are held no more.
  std::vector<Entering> TakeEntered(Epoch epoch);

  // Returns the events that stand for all arrivals of before.
  std::vector<BarrierState> Events() const;

 private:
  struct Ready {
    std::string boundary;
    std::set<uint64_t> numbers;
  };

  std::map<uint64_t, Waiting> waiting_;
  std::map<NodeId, Ready> ready_;
  std::map<NodeId, Entering> entering_;
};

}  // namespace bdn

#endif  // BANDONEON_SCHEDULER_CANDIDATES_H_
