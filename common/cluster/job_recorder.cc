#include "common/cluster/job_recorder.h"

#include <algorithm>
#include <span>
#include <vector>

namespace bdn {
namespace {

// Returns the nodes by rank, and 0 for a rank that nobody has.
std::vector<NodeId> ByRank(std::span<const NodeInfo> nodes) {
  std::vector<NodeId> ids;
  for (const NodeInfo& node : nodes) {
    const auto rank = static_cast<size_t>(node.rank);
    ids.resize(std::max(ids.size(), rank + 1));
    ids[rank] = node.id;
  }
  return ids;
}

}  // namespace

std::unique_ptr<Recorder> OpenRecorder(const RecorderOptions& options, const JoinRequest& join,
                                       const JoinResult& joined) {
  return Recorder::Open(options, {.job = joined.config.job_id,
                                  .role = RoleName(join.role),
                                  .host = join.host,
                                  .rank = joined.rank,
                                  .node = joined.node,
                                  .workers = ByRank(joined.membership->workers),
                                  .servers = ByRank(joined.membership->servers)});
}

}  // namespace bdn
