#include "scheduler/roster.h"

#include "absl/strings/str_format.h"

namespace bdn {
namespace {

constexpr size_t kMostNames = 8;  // in one text

}  // namespace

Roster RosterOf(const Membership& membership) {
  Roster roster;
  for (const NodeInfo& worker : membership.workers) roster.insert({worker.rank, worker.id});
  return roster;
}

std::string NamesOf(const Roster& roster) {
  std::string names;
  size_t named = 0;
  for (const RosterMember& member : roster) {
    if (named == kMostNames) {
      return names + absl::StrFormat(" and %d more", roster.size() - named);
    }
    names += absl::StrFormat("%sworker %d", named == 0 ? "" : ", ", member.rank);
    ++named;
  }
  return names;
}

}  // namespace bdn
