#ifndef BANDONEON_SERVER_SHARD_CONTEXT_H_
#define BANDONEON_SERVER_SHARD_CONTEXT_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/buffer.h"
#include "common/cluster/membership.h"
#include "common/telemetry/stage_times.h"
#include "common/wire/frame.h"
#include "link/link_monitor.h"
#include "server/memory_budget.h"
#include "server/rank_waits.h"

namespace bdn {

// Of a fetch: no payload, or a digest that came whole.
absl::Status CheckDigest(const Frame& fetch);

struct ShardStats {
  uint64_t pushes = 0;  // that were added to a round
  uint64_t rounds = 0;  // closed with a result
  uint64_t rounds_nonfinite = 0;
  uint64_t rounds_failed = 0;
  uint64_t duplicates = 0;      // pushes of an open round that were there already
  uint64_t cached_replies = 0;  // answers for a closed step
  uint64_t probes = 0;
  uint64_t refused = 0;  // frames answered with an error
  // Of payloads, and of the float32 that they stand for.
  uint64_t bytes_pushed = 0;
  uint64_t bytes_pushed_plain = 0;
  uint64_t bytes_replied = 0;
  uint64_t bytes_replied_plain = 0;

  ShardStats& operator+=(const ShardStats& other);
};

// A waiting frame names so many ranks, and the asker's: a job of thousands needs no longer list.
inline constexpr size_t kMostRanksTold = 64;

// A frame for a node, and those that a call made, to be sent in this order.
struct Outgoing {
  NodeId to = 0;
  Frame frame;
};
using Sends = std::vector<Outgoing>;

// The settings of a shard and what it borrows, the same from its beginning to its end.
struct ShardOptions {
  NodeId self = 0;
  uint64_t run_seed = 0;
  BufferPool* pool = nullptr;       // borrowed; null: the heap
  MemoryBudget* budget = nullptr;   // borrowed; null: without a limit
  StageTimes* stages = nullptr;     // borrowed; null: none are counted
  RankWaits* waits = nullptr;       // as well, and with stages alone
  QualityWatch* quality = nullptr;  // borrowed; null: links are not watched
  std::function<bool()> needs_checksums = [] { return true; };  // replies, now
};

// The facts that all keys of a shard share: its options, who takes part, and how answers are made. A
// value, copyable.
struct ShardContext {
  ShardOptions options;

  std::shared_ptr<const Membership> membership = std::make_shared<const Membership>();
  absl::flat_hash_map<NodeId, Rank> ranks;  // of its workers; SetMembership
  std::vector<Rank> leaving;                // workers that push no more; SetLeaving
  uint32_t catalogue_version = 0;
  ShardStats stats;
  std::vector<double> scratch;  // of the sum; one for all keys, so that it stays in cache

  void SetMembership(std::shared_ptr<const Membership> next);
  size_t roster_size() const { return membership->workers.size(); }
  // The rank of the worker that sent a frame of `epoch`. FailedPrecondition, Unavailable: the epoch
  // is over, or not known yet; PermissionDenied: no worker of it.
  absl::StatusOr<Rank> RankOf(NodeId from, Epoch epoch) const;

  // The header of an answer by this server.
  FrameHeader AnswerHeader(const FrameHeader& request, FrameType type) const;
  Frame ErrorFrame(const FrameHeader& request, const absl::Status& status) const;

  Sends ToAllWorkers(const Frame& frame) const;
  // An error to the asker alone, counted.
  Sends Refuse(NodeId to, const FrameHeader& request, const absl::Status& status);
  // Says that the answer is not there yet, for want of these ranks.
  Sends Defer(NodeId to, const FrameHeader& request, const std::vector<Rank>& missing) const;
};

}  // namespace bdn

#endif  // BANDONEON_SERVER_SHARD_CONTEXT_H_
