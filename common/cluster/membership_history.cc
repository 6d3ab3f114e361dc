#include "common/cluster/membership_history.h"

#include <string>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace bdn {
namespace {

std::string NodesAsJson(const std::vector<NodeInfo>& nodes) {
  return absl::StrJoin(nodes, ",", [](std::string* out, const NodeInfo& node) {
    absl::StrAppendFormat(out, "[%d,%d]", node.rank, node.id);
  });
}

}  // namespace

void WriteEpoch(const Membership& membership, HistoryFile* history) {
  if (history == nullptr) return;
  // Workers are told of the vacant ranks, and not of each other.
  std::string members = absl::StrFormat(
      ",\"epoch\":%d,\"unsafe\":%d,\"workers\":[%s],\"servers\":[%s],\"vacant\":[%s],\"moved\":{",
      membership.epoch, membership.unsafe, NodesAsJson(membership.workers),
      NodesAsJson(membership.servers), absl::StrJoin(membership.vacant, ","));
  const char* comma = "";
  for (const auto& [home, slots] : membership.moved) {
    absl::StrAppendFormat(&members, "%s\"%d\":[%s]", comma, home,
                          absl::StrJoin(slots, ",", [](std::string* out, const SlotOwner& owner) {
                            absl::StrAppendFormat(out, "[%d,%d]", owner.server, owner.since);
                          }));
    comma = ",";
  }
  history->Write("epoch", members + "}");
}

}  // namespace bdn
