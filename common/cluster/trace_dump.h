#ifndef BANDONEON_COMMON_CLUSTER_TRACE_DUMP_H_
#define BANDONEON_COMMON_CLUSTER_TRACE_DUMP_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/ids.h"
#include "common/cluster/membership.h"

// A dump: the latest records of a job's nodes, which the scheduler collects for a person who asks
// (docs/tracing.md, From a job that runs).

namespace bdn {

// The bounds of a dump: the bytes of a node's recording, those of a piece of it, the nodes, and the
// time for which a silent node is waited for.
inline constexpr uint64_t kMostDumpBytes = uint64_t{1} << 20;
inline constexpr uint64_t kMostDumpPieceBytes = uint64_t{64} << 10;
inline constexpr size_t kMostDumpNodes = 64;
inline constexpr absl::Duration kMostDumpPatience = absl::Minutes(10);

// An order to a node to send its latest records.
struct DumpOrder {
  uint64_t number = 0;                   // of the dump; not 0
  uint64_t most_bytes = kMostDumpBytes;  // of the recording
  // Only what ended so long before the node's newest record, or later.
  absl::Duration last = absl::InfiniteDuration();

  bool operator==(const DumpOrder&) const = default;
};

// A piece of a node's recording or, in its place, the reason why there is no more.
struct TracePiece {
  uint64_t number = 0;  // of the dump
  uint32_t piece = 0;   // from 0
  bool is_last = false;
  std::string content;
  absl::Status failure;  // with it the piece is the last one, and has no content
};

// The nodes of one role whose ranks are in a range.
struct DumpRanks {
  Role role = Role::kWorker;
  Rank first = 0;
  Rank last = 0;

  bool operator==(const DumpRanks&) const = default;
};

// The question of a person for a dump.
struct DumpRequest {
  std::vector<DumpRanks> nodes;                    // none: all; at most kMostDumpNodes
  absl::Duration last = absl::InfiniteDuration();  // as in DumpOrder
  absl::Duration patience = absl::Seconds(5);      // with a node that sends nothing

  bool Wants(const NodeInfo& node) const;
};

// Parses "workers", "servers", "worker-3" and "worker-8..15", one or several with commas between
// them; empty for all nodes. InvalidArgument says what is expected.
absl::StatusOr<std::vector<DumpRanks>> ParseDumpNodes(std::string_view text);

}  // namespace bdn

#endif  // BANDONEON_COMMON_CLUSTER_TRACE_DUMP_H_
