#include "common/cluster/job_recorder.h"

#include <algorithm>
#include <span>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

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

// Adds the settings that say which tensors become which keys. The scheduler alone was given them,
// and it records nothing.
RecorderOptions WithKeySettings(RecorderOptions options, const JobConfig& config) {
  for (const auto& [name, bytes] : {std::pair("partition-bytes", config.partition_bytes),
                                    std::pair("fusion-bytes", config.fusion_bytes),
                                    std::pair("min-compress-bytes", config.min_compress_bytes)}) {
    options.settings.emplace_back(name, absl::StrCat(bytes));
  }
  return options;
}

}  // namespace

std::unique_ptr<Recorder> OpenRecorder(const RecorderOptions& options, const JoinRequest& join,
                                       const JoinResult& joined) {
  return Recorder::Open(WithKeySettings(options, joined.config),
                        {.job = joined.config.job_id,
                         .role = RoleName(join.role),
                         .host = join.host,
                         .rank = joined.rank,
                         .node = joined.node,
                         .workers = ByRank(joined.membership->workers),
                         .servers = ByRank(joined.membership->servers)});
}

absl::StatusOr<std::string> RecordingFor(const DumpOrder& order, Recorder* recorder) {
  if (recorder == nullptr) {
    return FailedPrecondition(
        "it records nothing: its settings are recorder-bytes=0 and no trace, or it had no memory "
        "for them");
  }
  return recorder->Latest(order.most_bytes, order.last);
}

}  // namespace bdn
