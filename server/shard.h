#ifndef BANDONEON_SERVER_SHARD_H_
#define BANDONEON_SERVER_SHARD_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "common/cluster/membership.h"
#include "common/wire/frame.h"
#include "server/held_by_key.h"
#include "server/key_state.h"
#include "server/shard_context.h"

namespace bdn {

// A server's part for some of its keys: a frame in, the frames out that it calls for. Knows who
// takes part, and hands each frame to the protocol of its key: DenseKey or BroadcastKey. No
// thread, clock or socket; not thread-safe: owned by one shard thread. Copying copies all state
// (buffers are shared, immutable), which is what the explicit-state tests rest on.
class ServerShard {
 public:
  explicit ServerShard(const ShardOptions& options) : context_{.options = options} {}

  // A new roster. Open rounds start over: their contributors learn from a probe that they are
  // missing and send the same bytes again. Ignored unless its epoch is newer.
  void SetMembership(std::shared_ptr<const Membership> membership);

  // Workers that are leaving while others are not: what they have not pushed they never will.
  // What needs it fails, and changes nothing.
  Sends SetLeaving(std::vector<Rank> ranks);

  // Adds a key; one that exists stays as it is.
  void AddKey(std::shared_ptr<const KeyPlan> plan);
  // All workers are done with it: forgets the key, if it is here, and tells who waits for its open round.
  Sends RemoveKey(Key key);
  // Frames may name this catalogue version from now on.
  void SetCatalogueVersion(uint32_t version) { context_.catalogue_version = version; }

  // One frame from the node that its connection belongs to. Everything is checked before anything
  // changes; what is wrong is answered with an error frame.
  Sends OnFrame(NodeId from, const Frame& frame);

  const ShardStats& stats() const { return context_.stats; }
  // What its keys hold now, and the most that they ever held at once.
  const HeldBytes& held() const { return held_; }
  uint64_t most_held() const { return most_held_; }
  // Null when the key is not here. For tests and snapshots.
  const KeyState* Find(Key key) const;

 private:
  Sends OnDenseFrame(NodeId from, const Frame& frame, KeyState* state);
  Sends OnBroadcastFrame(NodeId from, const Frame& frame, KeyState* state);
  Sends RefuseType(NodeId from, const FrameHeader& header, const KeyPlan& plan);

  // Runs `change` on a key's state, and counts what that holds before and after.
  template <typename Change>
  Sends Counted(KeyState* state, const Change& change);

  ShardContext context_;
  HeldBytes held_;
  uint64_t most_held_ = 0;
  absl::flat_hash_map<Key, KeyState> keys_;
};

}  // namespace bdn

#endif  // BANDONEON_SERVER_SHARD_H_
