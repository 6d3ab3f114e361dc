#ifndef BANDONEON_SCHEDULER_BARRIER_H_
#define BANDONEON_SCHEDULER_BARRIER_H_

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "scheduler/roster.h"

namespace bdn {

// The members that are expected at one meeting, and those of them that have arrived. Not
// thread-safe.
class Barrier {
 public:
  explicit Barrier(Roster expected) : missing_(std::move(expected)) {}

  // Notes that a member has come; coming twice is coming once. REQUIRES: `member` is expected.
  void Arrive(const RosterMember& member) {
    if (auto node = missing_.extract(member); !node.empty()) present_.insert(std::move(node));
  }
  // Notes that a member has gone away again. REQUIRES: `member` is expected.
  void Withdraw(const RosterMember& member) {
    if (auto node = present_.extract(member); !node.empty()) missing_.insert(std::move(node));
  }

  // Expects a member more, which has not come.
  void Expect(const RosterMember& member) { missing_.insert(member); }
  // Expects a member no more, whether it has come or not.
  void Remove(const RosterMember& member) {
    missing_.erase(member);
    present_.erase(member);
  }

  bool Has(const RosterMember& member) const { return present_.count(member) > 0; }
  bool Expects(const RosterMember& member) const {
    return missing_.count(member) > 0 || Has(member);
  }
  bool full() const { return missing_.empty(); }
  bool empty() const { return present_.empty(); }
  const Roster& present() const { return present_; }
  const Roster& missing() const { return missing_; }
  // Returns "worker 1, worker 3"; empty where nobody is missing.
  std::string Missing() const { return NamesOf(missing_); }

 private:
  Roster missing_;
  Roster present_;
};

}  // namespace bdn

#endif  // BANDONEON_SCHEDULER_BARRIER_H_
