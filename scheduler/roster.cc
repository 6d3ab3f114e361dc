#include "scheduler/roster.h"

#include "absl/strings/str_format.h"
#include "common/cluster/worker_names.h"
#include "scheduler/membership_table.h"

namespace bdn {
namespace {

constexpr size_t kMostNames = 8;  // in one text

bool IsHost(const RosterMember& member) {
  return member.processes > 1 || member.first_process != member.rank;
}

}  // namespace

Roster RosterOf(const Membership& membership) {
  Roster roster;
  Rank first = 0;
  for (const NodeInfo& worker : membership.workers) {
    roster.insert({worker.rank, worker.id, first, worker.processes});
    first += worker.processes;
  }
  return roster;
}

std::string NameOf(const RosterMember& member) {
  return NameOfWorker(member.rank, member.first_process, member.processes);
}

std::string NameOf(const RosterMember& member, const NodeInfo& info) {
  if (!IsHost(member)) return MembershipTable::Describe(info);
  return absl::StrFormat("host %d (%s; node %d, %s)", member.rank,
                         RanksOfWorker(member.first_process, member.processes), info.id, info.host);
}

std::string NamesOf(const Roster& roster) {
  std::string names;
  size_t named = 0;
  for (const RosterMember& member : roster) {
    if (named == kMostNames) {
      return names + absl::StrFormat(" and %d more", roster.size() - named);
    }
    names += (named == 0 ? "" : ", ") + NameOf(member);
    ++named;
  }
  return names;
}

}  // namespace bdn
