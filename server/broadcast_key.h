#ifndef BANDONEON_SERVER_BROADCAST_KEY_H_
#define BANDONEON_SERVER_BROADCAST_KEY_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "common/base/buffer.h"
#include "common/certs/digest.h"
#include "common/wire/frame.h"
#include "server/key_plan.h"
#include "server/shard_context.h"

namespace bdn {

// A value set by the root and fetched by the others.
struct BroadcastValue {
  Step step = 0;  // 0: none yet
  Rank root = -1;
  Buffer bytes;  // none once everybody has it
  uint32_t crc = 0;
  std::optional<Digest> digest;  // once it was asked for
};

// Everything a server holds of one broadcast key. A value.
struct BroadcastState {
  BroadcastValue value;       // in force: what a fetch of its step is answered by
  BroadcastValue next;        // the root's next, until nobody can ask for that one any more
  BroadcastValue before;      // what was in force before, without its bytes
  std::vector<Step> fetches;  // by rank: the highest step asked for
  std::vector<Step> had;      // by rank: the highest step whose value it has
  // By rank: what it said that it holds, of the step in `fetches`.
  std::vector<std::optional<Digest>> holds;
  size_t num_behind = 0;  // ranks that may still ask for the value in force

  // Who takes part is new, and has asked for nothing.
  void SetRoster(size_t size);
  // Another value is in force.
  void SetValue(BroadcastValue in_force);
  void NoteFetch(Rank rank, Step step);
  void NoteHas(Rank rank, Step step);
  // Whether a rank may still ask for the value in force: it has said neither that it has it, nor
  // asked for a later one.
  bool IsBehind(Rank rank) const;

 private:
  template <typename Change>
  void Counted(Rank rank, const Change& change);
  void CountBehind();
};

// What a server does with the frames about one broadcast key (proto/wire_format.md, section 8.1).
// Everything is checked before anything changes; what is wrong is answered with an error.
//
// Holds nothing: made for one call, on a state and a shard that are borrowed for it.
class BroadcastKey {
 public:
  BroadcastKey(const KeyPlan& plan, BroadcastState* state, ShardContext* shard)
      : plan_(plan), state_(*state), shard_(*shard) {}

  Sends OnInit(NodeId from, const Frame& frame);
  // The root asks whether its value is in force: the answer is a reply, or whom that waits for, or
  // the root's own rank when the value has not come. Another says that it has the value.
  Sends OnProbe(NodeId from, const FrameHeader& header);
  // A worker asks for the value; with the digest of what it holds it is spared that where it is the value.
  Sends OnFetch(NodeId from, const Frame& frame);

 private:
  absl::Status CheckFetch(const Frame& frame) const;
  // The value in force as this rank needs it.
  Frame ValueFor(Rank rank);
  absl::Status CheckStep(const FrameHeader& header) const;
  absl::Status CheckInit(const Frame& frame, Rank rank) const;
  absl::Status CheckNobodyLeaves(Step step) const;
  bool IsRepeat(const Frame& frame, Rank rank) const;
  std::vector<Rank> RanksBehind() const;
  void NoteHas(Rank rank, Step step);
  Sends PutNextInForce();

  FrameHeader AnswerOf(FrameType type, Step step) const;

  const KeyPlan& plan_;
  BroadcastState& state_;
  ShardContext& shard_;
};

}  // namespace bdn

#endif  // BANDONEON_SERVER_BROADCAST_KEY_H_
