#ifndef BANDONEON_SCHEDULER_WAITING_CALLS_H_
#define BANDONEON_SCHEDULER_WAITING_CALLS_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "common/base/ids.h"

namespace bdn {

// One call that waits for its answer. 0 is none.
using CallId = uint64_t;

// Who waits for what, and until when.
struct WaitingCall {
  enum class Kind { kJoin, kDeclare, kBarrier, kLeave } kind;
  NodeId node = 0;
  absl::Time deadline;
  uint64_t batch = 0;   // kDeclare
  std::string barrier;  // kBarrier
};

// The calls of a job that have no answer yet. Not thread-safe.
class WaitingCalls {
 public:
  // The id of a call that is answered at once.
  CallId NewId() { return next_id_++; }
  CallId Add(WaitingCall call);
  // Null once it is answered.
  const WaitingCall* Find(CallId id) const;
  // Forgets the call, which is being answered. REQUIRES: Find(id) is not null.
  WaitingCall Take(CallId id);

  // The calls for which `condition` holds, in the order in which they came.
  template <typename Condition>
  std::vector<CallId> Where(Condition condition) const {
    std::vector<CallId> ids;
    for (const auto& [id, call] : calls_) {
      if (condition(call)) ids.push_back(id);
    }
    return ids;
  }
  // Whether a node waits in some call, for a barrier of that name if for one.
  bool Has(WaitingCall::Kind kind, NodeId node, const std::string& barrier) const;
  absl::Time NextDeadline() const;

 private:
  CallId next_id_ = 1;
  std::map<CallId, WaitingCall> calls_;
};

}  // namespace bdn

#endif  // BANDONEON_SCHEDULER_WAITING_CALLS_H_
