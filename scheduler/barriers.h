#ifndef BANDONEON_SCHEDULER_BARRIERS_H_
#define BANDONEON_SCHEDULER_BARRIERS_H_

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "scheduler/barrier.h"
#include "scheduler/job_event.h"
#include "scheduler/roster.h"

namespace bdn {

// The open barriers of a job by their names, and the answers to arrivals that are kept until their
// nodes have them. The job, its owner, checks names and workers, and answers the calls. Not
// thread-safe.
class Barriers {
 public:
  // Returns whether this barrier is open, or fewer than `most` are.
  bool MayOpen(const std::string& name, size_t most) const {
    return open_.size() < most || Has(name);
  }
  bool Has(const std::string& name) const { return open_.count(name) > 0; }
  // Returns whether the member has come. REQUIRES: Has(name), as for all that takes a name below.
  bool Has(const std::string& name, const RosterMember& member) const {
    return open_.at(name).barrier.Has(member);
  }
  bool IsFull(const std::string& name) const { return open_.at(name).barrier.full(); }
  std::string Missing(const std::string& name) const { return open_.at(name).barrier.Missing(); }
  std::vector<std::string> Names() const;

  // Forgets the answers to the node's arrivals below `first_open`. Returns the answer to this one,
  // null where none is kept.
  const Met* AnswerTo(NodeId node, uint64_t number, uint64_t first_open);
  // Returns whether the barrier waits for the member, or it has come.
  bool Expects(const std::string& name, const RosterMember& member) const {
    return open_.at(name).barrier.Expects(member);
  }
  // Notes that a member has come, with the number of its arrival or 0. A barrier that is not open
  // is opened, and expects those of the roster whose ranks its name tells; true where that is so.
  bool Arrive(const std::string& name, const Roster& roster, const RosterMember& member,
              uint64_t number);
  // Notes that a member has gone away again. A barrier at which nobody is left is forgotten.
  void Withdraw(const std::string& name, const RosterMember& member);
  // Ends a barrier. Where it ends well its numbered arrivals are answered so.
  void End(const std::string& name, bool is_well, const Met& met);
  // Keeps the answer to an arrival at a barrier that has ended.
  void KeepAnswer(NodeId node, uint64_t number, const Met& met) { answered_[node][number] = met; }
  // Expects a worker no more that is out, and forgets the answers to it. Returns the barriers that
  // are full without it.
  std::vector<std::string> Remove(const RosterMember& gone);
  // Forgets the open barriers.
  void Clear() { open_.clear(); }

  // Returns the events that stand for all events of barriers before.
  std::vector<JobEvent> Events() const;
  // Take up what such an event says. Of the arrivals only those of `members` count.
  void Restore(const BarrierState& state, const Roster& roster,
               const std::vector<RosterMember>& members);
  void Restore(const ArrivalsAnswered& answered) { answered_[answered.node] = answered.answers; }

 private:
  // A barrier, and the numbers of the arrivals at it that have one.
  struct Meeting {
    explicit Meeting(const Roster& expected) : barrier(expected) {}
    Barrier barrier;
    std::map<NodeId, std::set<uint64_t>> numbers;
  };

  std::map<std::string, Meeting> open_;
  // The answers with which numbered arrivals have ended, until their nodes have them.
  std::map<NodeId, std::map<uint64_t, Met>> answered_;
};

}  // namespace bdn

#endif  // BANDONEON_SCHEDULER_BARRIERS_H_
