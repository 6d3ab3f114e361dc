#ifndef BANDONEON_SCHEDULER_WAITING_CALLS_H_
#define BANDONEON_SCHEDULER_WAITING_CALLS_H_

#include <compare>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "common/base/ids.h"

namespace bdn {

// The number of a call that waits for its answer. 0 is no call.
using CallId = uint64_t;

// The event that calls wait for.
struct WaitSubject {
  // kVacancy: a server that is to be none of the job's nodes before one of them is lost.
  enum class Kind { kJoin, kDeclare, kBarrier, kLeave, kVacancy } kind;
  uint64_t batch = 0;   // kDeclare; of kVacancy the number of the server among those that wait
  std::string barrier;  // kBarrier

  auto operator<=>(const WaitSubject&) const = default;
};

// A call that waits: its node, the event, and the deadline.
struct WaitingCall {
  WaitSubject subject;
  NodeId node = 0;  // 0 of kVacancy
  absl::Time deadline;
};

// The calls of a job that have no answer yet. Each operation takes the logarithm of their number,
// and time in proportion to what it returns. Not thread-safe.
class WaitingCalls {
 public:
  // Returns the id for a call that is answered at once.
  CallId NewId() { return next_id_++; }
  CallId Add(WaitingCall call);
  // Returns null once the call is answered.
  const WaitingCall* Find(CallId id) const;
  // Forgets all calls, whose callers are gone.
  void Clear();
  // Forgets the call, which is being answered. REQUIRES: Find(id) is not null.
  WaitingCall Take(CallId id);

  // These return calls in the order in which they came.
  std::vector<CallId> All() const;
  std::vector<CallId> WaitingFor(const WaitSubject& subject) const;
  // Returns those of one node; a node waits in few calls.
  std::vector<CallId> Of(const WaitSubject& subject, NodeId node) const;
  // Returns all of one node.
  std::vector<CallId> Of(NodeId node) const;
  // Returns whether some call of the node waits for that.
  bool Has(const WaitSubject& subject, NodeId node) const { return !Of(subject, node).empty(); }
  // Returns whether the node waits for any batch.
  bool Declares(NodeId node) const { return declaring_.count(node) > 0; }

  // Returns the calls whose deadline has come, in the order in which they came.
  std::vector<CallId> Due(absl::Time now) const;
  absl::Time NextDeadline() const;

 private:
  CallId next_id_ = 1;
  std::map<CallId, WaitingCall> calls_;
  std::map<WaitSubject, std::set<std::pair<NodeId, CallId>>> by_subject_;
  std::set<std::pair<absl::Time, CallId>> by_deadline_;
  std::multiset<NodeId> declaring_;
  std::set<std::pair<NodeId, CallId>> by_node_;
};

}  // namespace bdn

#endif  // BANDONEON_SCHEDULER_WAITING_CALLS_H_
