#ifndef BANDONEON_SCHEDULER_ROSTER_H_
#define BANDONEON_SCHEDULER_ROSTER_H_

#include <compare>
#include <set>
#include <string>
#include <utility>

#include "common/base/ids.h"
#include "common/cluster/membership.h"

namespace bdn {

// A worker of which something is expected. Another node of the same rank is another member.
struct RosterMember {
  Rank rank = 0;
  NodeId node = 0;
  // Of those who push through it; people count processes where this is not the node's own rank.
  Rank first_process = rank;
  int processes = 1;

  bool operator==(const RosterMember& other) const {
    return rank == other.rank && node == other.node;
  }
  auto operator<=>(const RosterMember& other) const {
    return std::pair(rank, node) <=> std::pair(other.rank, other.node);
  }
};

// Members in the order of their ranks.
using Roster = std::set<RosterMember>;

// All workers of a membership.
Roster RosterOf(const Membership& membership);
// "worker 1"; "host 1 (ranks 2-3)" where processes push through it, or through those before it.
std::string NameOf(const RosterMember& member);
// The same with where it runs: "worker 1 (node 5, host:pid)", "host 1 (ranks 2-3; node 5, host:pid)".
std::string NameOf(const RosterMember& member, const NodeInfo& info);
// "worker 1, worker 3"; of many the first and how many more. Empty where there is nobody.
std::string NamesOf(const Roster& roster);

}  // namespace bdn

#endif  // BANDONEON_SCHEDULER_ROSTER_H_
