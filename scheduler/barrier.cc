#include "scheduler/barrier.h"

#include <algorithm>
#include <iterator>

#include "common/base/status.h"

namespace bdn {

absl::Status Barrier::CheckMayFill(const Roster& leaving, const std::string& what) const {
  for (const RosterMember& member : leaving) {
    if (Has(member)) continue;
    return Aborted("%s: worker %d is leaving the job instead", what, member.rank);
  }
  return absl::OkStatus();
}

std::string Barrier::Missing() const {
  Roster missing;
  std::set_difference(expected_.begin(), expected_.end(), present_.begin(), present_.end(),
                      std::inserter(missing, missing.end()));
  return NamesOf(missing);
}

}  // namespace bdn
