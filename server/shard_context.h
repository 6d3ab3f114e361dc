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
#include "common/telemetry/history_file.h"
#include "common/telemetry/stage_times.h"
#include "common/wire/frame.h"
#include "link/link_monitor.h"
#include "server/memory_budget.h"
#include "server/places.h"
#include "server/rank_waits.h"

namespace bdn {

// OK if the fetch has no payload, or an intact digest.
absl::Status CheckDigest(const Frame& fetch);

// The counters of a shard; `+=` adds up those of several.
struct ShardStats {
  uint64_t pushes = 0;  // pushes that were added to a round
  uint64_t rounds = 0;  // rounds closed with a result
  uint64_t rounds_nonfinite = 0;
  uint64_t rounds_failed = 0;
  uint64_t duplicates = 0;      // pushes that were in their open round already
  uint64_t cached_replies = 0;  // requests about a closed step, answered from memory
  uint64_t probes = 0;
  uint64_t refused = 0;            // frames answered with an error
  uint64_t rebuilding = 0;         // keys of lost servers that are not whole yet
  uint64_t rebuilt = 0;            // keys of lost servers that are whole again
  uint64_t estimated = 0;          // those of them whose state is an estimate
  uint64_t rows = 0;               // rows of tables that are stored now
  uint64_t rows_updated = 0;       // updates of single rows
  uint64_t rows_fetched = 0;       // rows that fetches were told, besides those of replies
  uint64_t rows_added = 0;         // rows that an update made
  uint64_t rows_removed = 0;       // because of a bound or of their age
  uint64_t rows_not_admitted = 0;  // gradients of rows that were not admitted yet
  // Bytes of payloads, and of the float32 values that they stand for.
  uint64_t bytes_pushed = 0;
  uint64_t bytes_pushed_plain = 0;
  uint64_t bytes_replied = 0;
  uint64_t bytes_replied_plain = 0;

  ShardStats& operator+=(const ShardStats& other);
};

// The most ranks that a waiting frame names, besides the asker's: in a job of thousands of workers
// nobody needs a longer list.
inline constexpr size_t kMostRanksTold = 64;

// A frame for a node. Sends are the frames that one call causes, to be sent in this order.
struct Outgoing {
  NodeId to = 0;
  Frame frame;
};
using Sends = std::vector<Outgoing>;

// The settings of a shard and the objects that it borrows, constant for its whole life.
struct ShardOptions {
  NodeId self = 0;
  uint64_t run_seed = 0;
  BufferPool* pool = nullptr;       // borrowed; null: the heap
  MemoryBudget* budget = nullptr;   // borrowed; null: without a limit
  StageTimes* stages = nullptr;     // borrowed; null: no stage times are counted
  RankWaits* waits = nullptr;       // borrowed, used only with stages; null: not counted
  QualityWatch* quality = nullptr;  // borrowed; null: links are not watched
  HistoryFile* history = nullptr;   // borrowed; null: none is written
  // Roots of broadcasts keep their values for a server that may be lost, until they are told that
  // every worker has them.
  bool tells_roots = false;
  // Called when the job cannot go on, because a key cannot be rebuilt; may be null.
  std::function<void(const absl::Status& why)> on_failure;
  // Returns whether replies made now need a checksum.
  std::function<bool()> needs_checksums = [] { return true; };
};

// The facts that all keys of a shard share: its options, the roster, and the making of answers. A
// value; not thread-safe: owned by the shard.
struct ShardContext {
  ShardOptions options;

  std::shared_ptr<const Membership> membership = std::make_shared<const Membership>();
  std::shared_ptr<const Places> everyone = std::make_shared<const Places>();  // all its workers
  // Those of each group whose keys are here, by group.
  absl::flat_hash_map<RankGroup, std::shared_ptr<const Places>> groups;
  std::vector<Rank> leaving;  // workers that push no more, as ServerShard::SetLeaving
  uint32_t catalogue_version = 0;
  ShardStats stats;
  std::vector<double> scratch;  // for sums; one for all keys, so that it stays in the cache

  void SetMembership(std::shared_ptr<const Membership> next);
  // Returns the workers of the membership that exchange a key of this group.
  std::shared_ptr<const Places> PlacesOf(const RankGroup& group);
  // Returns the place of the worker that sent a frame of `epoch`. FailedPrecondition: the epoch is
  // over. Unavailable: it is not known here yet. PermissionDenied: the node is not in the roster.
  absl::StatusOr<Place> PlaceOf(const Places& roster, NodeId from, Epoch epoch) const;

  // Returns the header of this server's answer to a request.
  FrameHeader AnswerHeader(const FrameHeader& request, FrameType type) const;
  Frame ErrorFrame(const FrameHeader& request, const absl::Status& status) const;

  // Returns the frame for each worker of the roster, in the order of places.
  static Sends ToAll(const Places& roster, const Frame& frame);
  // Returns an error frame for the asker alone, and counts it.
  Sends Refuse(NodeId to, const FrameHeader& request, const absl::Status& status);
  // Returns a frame that says that the answer must wait for these ranks.
  Sends Defer(NodeId to, const FrameHeader& request, const std::vector<Rank>& missing) const;
};

}  // namespace bdn

#endif  // BANDONEON_SERVER_SHARD_CONTEXT_H_
