#ifndef BANDONEON_SERVER_SHARD_H_
#define BANDONEON_SERVER_SHARD_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "common/cluster/membership.h"
#include "common/wire/frame.h"
#include "server/key_state.h"

namespace bdn {

struct ShardStats {
  uint64_t pushes = 0;  // that were added to a round
  uint64_t rounds = 0;  // closed with a result
  uint64_t rounds_nonfinite = 0;
  uint64_t rounds_failed = 0;
  uint64_t duplicates = 0;      // pushes of an open round that were there already
  uint64_t cached_replies = 0;  // answers for a closed step
  uint64_t probes = 0;
  uint64_t refused = 0;  // frames answered with an error

  ShardStats& operator+=(const ShardStats& other);
};

// A server's part for some of its keys: frames in, frames out through `output`. No thread, clock or
// socket; not thread-safe: owned by one shard thread. Copying copies all state (buffers are shared,
// immutable), which is what the explicit-state tests rest on.
//
// Rounds follow proto/wire_format.md: each (key, step, node) counts exactly once; contributions are
// summed in rank order; the result is encoded once and kept until the next step closes.
class ServerShard {
 public:
  // Takes frames for workers. Borrowed; must not call back into the shard.
  class Output {
   public:
    virtual ~Output() = default;
    virtual void Send(NodeId to, Frame frame) = 0;
  };
  struct Options {
    NodeId self = 0;
    uint64_t run_seed = 0;
    BufferPool* pool = nullptr;  // borrowed; null: the heap
  };

  ServerShard(const Options& options, Output* output) : options_(options), output_(output) {}

  void set_output(Output* output) { output_ = output; }

  // A new roster. Open rounds start over: their contributors learn from a probe that they are
  // missing and send the same bytes again. Ignored unless its epoch is newer.
  void SetMembership(std::shared_ptr<const Membership> membership);

  // Workers that are leaving while others are not: what they have not pushed they never will.
  // What needs it fails, and changes nothing.
  void SetLeaving(std::vector<Rank> ranks);

  // Adds a key; one that exists stays as it is.
  void AddKey(std::shared_ptr<const KeyPlan> plan);
  // Frames may name this catalogue version from now on.
  void SetCatalogueVersion(uint32_t version) { catalogue_version_ = version; }

  // One frame from the node that its connection belongs to. Everything is checked before anything
  // changes; what is wrong is answered with an error frame.
  void OnFrame(NodeId from, const Frame& frame);

  const ShardStats& stats() const { return stats_; }
  // Null when the key is not here. For tests and snapshots.
  const KeyState* Find(Key key) const;

 private:
  void OnPush(NodeId from, const Frame& frame, KeyState* state);
  void OnProbe(NodeId from, const FrameHeader& header, KeyState* state);
  void AnswerClosed(NodeId from, const FrameHeader& header, KeyState* state);
  // Of broadcast keys.
  void OnInit(NodeId from, const Frame& frame, KeyState* state);
  void OnValueProbe(NodeId from, const FrameHeader& header, KeyState* state);
  std::vector<Rank> BehindValue(const KeyState& state) const;
  void OnFetch(NodeId from, const FrameHeader& header, KeyState* state);
  // Of dense keys: parts of what the server holds of a segment.
  void OnStateInit(NodeId from, const Frame& frame, KeyState* state);
  void OnStateFetch(NodeId from, const FrameHeader& header, KeyState* state);

  absl::Status CheckSender(NodeId from, const FrameHeader& header, Rank* rank) const;
  absl::Status CheckStep(const FrameHeader& header, const KeyState& state) const;
  absl::Status CheckPush(const Frame& frame, Rank rank, const KeyState& state,
                         bool* fails_round) const;
  void Accept(const Frame& frame, Rank rank, KeyState* state);
  void CloseRound(KeyState* state);
  absl::Status CheckMayClose(const KeyState& state, Step step, Rank pusher) const;
  absl::Status CheckMayCome(const KeyState& state, Step step) const;
  Draw ReplyDraw(const KeyPlan& plan, Step step) const;
  Frame EncodeResult(KeyState* state, const RoundFacts& facts);
  absl::StatusOr<Frame> UpdateWeights(KeyState* state, const RoundFacts& facts);
  absl::StatusOr<Frame> EncodeWeights(KeyState* state, const RoundFacts& facts, const float* signs,
                                      const std::vector<uint8_t>& present);
  absl::StatusOr<Frame> AddEncodedResult(KeyState* state, const RoundFacts& facts);
  Frame NonFiniteReply(const KeyState& state, Step step) const;
  Frame PayloadReply(const KeyState& state, Step step, Buffer payload) const;
  static std::vector<ByteSpan> Payloads(const KeyState& state);
  std::vector<uint8_t> Sum(const KeyState& state, MutableView sum) const;
  void FailRound(KeyState* state, Step step, const absl::Status& status);
  void FinishRound(KeyState* state, Step step, Frame answer);
  void PromoteValue(KeyState* state);

  FrameHeader Answer(const FrameHeader& request, FrameType type) const;
  FrameHeader StepAnswer(FrameType type, const KeyState& state, Step step) const;
  void Broadcast(const Frame& frame);
  void Refuse(NodeId to, const FrameHeader& about, const absl::Status& status);
  void SendWaiting(NodeId to, const FrameHeader& about, const std::vector<Rank>& missing);
  MutableView Scratch(size_t n, DType dtype);
  Buffer NewBuffer(size_t size) const;

  Options options_;
  Output* output_;
  std::shared_ptr<const Membership> membership_ = std::make_shared<const Membership>();
  std::vector<Rank> leaving_;
  uint32_t catalogue_version_ = 0;
  absl::flat_hash_map<Key, KeyState> keys_;
  std::vector<double> scratch_;  // one sum at a time; stays in cache
  ShardStats stats_;
};

}  // namespace bdn

#endif  // BANDONEON_SERVER_SHARD_H_
