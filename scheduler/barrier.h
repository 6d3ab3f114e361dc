#ifndef BANDONEON_SCHEDULER_BARRIER_H_
#define BANDONEON_SCHEDULER_BARRIER_H_

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "scheduler/roster.h"

namespace bdn {

// Who of those that are expected at one place has come. Not thread-safe.
class Barrier {
 public:
  explicit Barrier(Roster expected) : expected_(std::move(expected)) {}

  // Coming twice is coming once. REQUIRES: `member` is expected.
  void Arrive(const RosterMember& member) { present_.insert(member); }
  void Withdraw(const RosterMember& member) { present_.erase(member); }

  bool Has(const RosterMember& member) const { return present_.count(member) > 0; }
  bool full() const { return present_.size() == expected_.size(); }
  bool empty() const { return present_.empty(); }
  const Roster& present() const { return present_; }
  // Aborted where one of `leaving` has not come, for whom it waits in vain; `what` is being waited
  // for.
  absl::Status CheckMayFill(const Roster& leaving, const std::string& what) const;
  // "worker 1, worker 3"; empty where nobody is missing.
  std::string Missing() const;

 private:
  Roster expected_;
  Roster present_;  // some of the expected
};

}  // namespace bdn

#endif  // BANDONEON_SCHEDULER_BARRIER_H_
