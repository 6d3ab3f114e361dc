#ifndef BANDONEON_SCHEDULER_ROSTER_H_
#define BANDONEON_SCHEDULER_ROSTER_H_

#include <compare>
#include <set>
#include <string>
#include <utility>

#include "common/base/ids.h"
#include "common/cluster/membership.h"

namespace bdn {

// A worker from which something is expected. Another node of the same rank is another member.
struct RosterMember {
  Rank rank = 0;
  NodeId node = 0;
  // The first of the processes that push through it. People count processes where this is not the
  // node's own rank.
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

// Returns all workers of the first membership. REQUIRES: no rank is vacant below one that is taken.
Roster RosterOf(const Membership& membership);
// Returns "worker 1"; "host 1 (ranks 2-3)" where several processes push through it, or through a
// worker before it.
std::string NameOf(const RosterMember& member);
// Returns the same with the process: "worker 1 (node 5, host:pid)", "host 1 (ranks 2-3; node 5,
// host:pid)".
std::string NameOf(const RosterMember& member, const NodeInfo& info);
// Returns "worker 1, worker 3"; of many members the first, and how many more. Empty where the
// roster is.
std::string NamesOf(const Roster& roster);

}  // namespace bdn

#endif  // BANDONEON_SCHEDULER_ROSTER_H_
