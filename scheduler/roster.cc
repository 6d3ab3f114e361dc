#include "scheduler/roster.h"

#include "absl/strings/str_format.h"

namespace bdn {

Roster RosterOf(const Membership& membership) {
  Roster roster;
  for (const NodeInfo& worker : membership.workers) roster.insert({worker.rank, worker.id});
  return roster;
}

std::vector<Rank> RanksOf(const Roster& roster) {
  std::vector<Rank> ranks;
  for (const RosterMember& member : roster) ranks.push_back(member.rank);
  return ranks;
}

std::string NamesOf(const Roster& roster) {
  std::string names;
  for (const RosterMember& member : roster) {
    names += absl::StrFormat("%sworker %d", names.empty() ? "" : ", ", member.rank);
  }
  return names;
}

}  // namespace bdn
