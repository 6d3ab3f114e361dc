#ifndef BANDONEON_SCHEDULER_ROSTER_H_
#define BANDONEON_SCHEDULER_ROSTER_H_

#include <compare>
#include <set>
#include <string>
#include <vector>

#include "common/base/ids.h"
#include "common/cluster/membership.h"

namespace bdn {

// A worker of which something is expected. Another node of the same rank is another member.
struct RosterMember {
  Rank rank = 0;
  NodeId node = 0;

  auto operator<=>(const RosterMember&) const = default;
};

// Members in the order of their ranks.
using Roster = std::set<RosterMember>;

// All workers of a membership.
Roster RosterOf(const Membership& membership);
// "worker 1, worker 3"; of many the first and how many more. Empty where there is nobody.
std::string NamesOf(const Roster& roster);

}  // namespace bdn

#endif  // BANDONEON_SCHEDULER_ROSTER_H_
