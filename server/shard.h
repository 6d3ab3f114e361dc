#ifndef BANDONEON_SERVER_SHARD_H_
#define BANDONEON_SERVER_SHARD_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "common/cluster/membership.h"
#include "common/cluster/row_counts.h"
#include "common/wire/frame.h"
#include "server/held_by_key.h"
#include "server/key_state.h"
#include "server/late_workers.h"
#include "server/shard_context.h"

namespace bdn {

// The part of a server that answers for some of its keys: a frame goes in, and the frames that it
// causes come out. It knows the roster, and hands each frame to the protocol of its key: DenseKey,
// BroadcastKey or RowKey. Without thread, clock or socket; not thread-safe: owned by one shard
// thread. A copy copies all state (buffers are shared and immutable), which the explicit-state
// tests rely on.
class ServerShard {
 public:
  explicit ServerShard(const ShardOptions& options) : context_{.options = options} {}

  // Sets a new roster. Open rounds start over: their contributors learn from a probe that they are
  // missing and send the same bytes again. Broadcasts that waited for a worker that is out go on;
  // the frames for that are returned. Ignored unless its epoch is newer.
  Sends SetMembership(std::shared_ptr<const Membership> membership);

  // Sets the workers that are leaving while others are not. They push no more, so a round that
  // needs them fails, without a change of the key's state.
  Sends SetLeaving(std::vector<Rank> ranks);

  // Adds a key; one that exists stays as it is. One that another server had before is rebuilt
  // first.
  void AddKey(std::shared_ptr<const KeyPlan> plan, bool is_rebuilt = false);
  // Forgets a key that all workers are done with, if it is here; returns the errors that tell
  // workers that its open round has failed.
  Sends RemoveKey(Key key);
  // Sets the catalogue version up to which this shard knows its keys.
  void SetCatalogueVersion(uint32_t version) { context_.catalogue_version = version; }

  // Handles one frame from the node that its connection belongs to. Everything is checked before
  // anything changes; a frame that is wrong is answered with an error frame.
  Sends OnFrame(NodeId from, const Frame& frame);

  // Returns the rounds that are open now. Passes over all keys.
  std::vector<OpenRound> OpenRounds() const;
  // Returns the counts of the tables of which this shard has buckets, names rising.
  std::vector<TableCounts> CountTables() const;

  const ShardStats& stats() const { return context_.stats; }
  // Return the bytes that its keys hold now, and the most that they ever held at once.
  const HeldBytes& held() const { return held_; }
  uint64_t most_held() const { return most_held_; }
  // Returns a key's state, or null when the key is not here. For tests and snapshots.
  const KeyState* Find(Key key) const;

 private:
  // Hands a frame to a protocol of rounds: DenseKey or RowKey.
  template <typename KeyProtocol>
  Sends OnRoundFrame(NodeId from, const Frame& frame, const KeyPlan& plan, KeyProtocol key);
  Sends OnBroadcastFrame(NodeId from, const Frame& frame, KeyState* state);
  absl::Status WhyUnknown(const FrameHeader& header) const;
  Sends RefuseType(NodeId from, const FrameHeader& header, const KeyPlan& plan);

  // Returns those workers of the membership that have these ranks.
  std::vector<NodeId> NodesOf(const std::vector<Rank>& ranks) const;
  // Runs `change` on a key's state, and counts the bytes that the key holds before and after.
  template <typename Change>
  Sends Counted(KeyState* state, const Change& change);

  ShardContext context_;
  HeldBytes held_;
  uint64_t most_held_ = 0;
  absl::flat_hash_map<Key, KeyState> keys_;
};

}  // namespace bdn

#endif  // BANDONEON_SERVER_SHARD_H_
