#ifndef BANDONEON_SERVER_BROADCAST_KEY_H_
#define BANDONEON_SERVER_BROADCAST_KEY_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/buffer.h"
#include "common/certs/digest.h"
#include "common/wire/frame.h"
#include "server/key_plan.h"
#include "server/places.h"
#include "server/shard_context.h"

namespace bdn {

// The value of one step of a broadcast: its root sets it, the other workers fetch it.
struct BroadcastValue {
  Step step = 0;  // 0: there is no value yet
  Rank root = -1;
  Buffer bytes;  // empty once every worker has it
  uint32_t crc = 0;
  std::optional<Digest> digest;  // set when a worker first asks with a digest
};

// The state that a server holds for one broadcast key. A value.
struct BroadcastState {
  // The workers that take part, never null. What follows "by place" is in their order.
  std::shared_ptr<const Places> places = std::make_shared<const Places>();
  BroadcastValue value;  // the value in force, which answers fetches of its step
  // The root's next value. It waits until no worker can ask for the one in force any more.
  BroadcastValue next;
  BroadcastValue before;      // the value that was in force before, without its bytes
  std::vector<Step> fetches;  // by place: the highest step that it has fetched
  std::vector<Step> had;      // by place: the highest step whose value it has confirmed to have
  // By place: the highest step that any worker had asked for when this one was taken into a job
  // that ran; nothing where it was there from the beginning. Failed calls use up steps, too.
  std::vector<std::optional<Step>> stood_at;
  // By place: the digest that the worker sent with its fetch of the step in `fetches`, if any.
  std::vector<std::optional<Digest>> holds;
  std::vector<Step> unwanted;  // by place: the highest step whose bytes it does without
  size_t num_behind = 0;       // the number of places for which IsBehind is true

  // Sets another roster. Workers that were in the one before keep what they have fetched and have.
  void SetRoster(std::shared_ptr<const Places> now);
  // Puts another value in force; the one in force becomes `before`.
  void SetValue(BroadcastValue in_force);
  void NoteFetch(Place place, Step step);
  void NoteHas(Place place, Step step);
  // Returns whether a place may still fetch the value in force: it has neither confirmed that it
  // has the value, nor fetched a later step. The value's root never is behind.
  bool IsBehind(Place place) const;
  // Returns the highest step that a rank has fetched; nothing where the roster lacks the rank.
  std::optional<Step> FetchedBy(Rank rank) const;

 private:
  template <typename Change>
  void Counted(Place place, const Change& change);
  void CountBehind();
};

// The protocol of one broadcast key at a server (proto/wire_format.md, section 8.1). Each frame is
// checked before anything changes; a frame that is wrong is answered with an error.
//
// It holds no state of its own: an object is made for one call, and borrows the key's state and the
// shard for that call. Not thread-safe: used by the shard's thread.
class BroadcastKey {
 public:
  BroadcastKey(const KeyPlan& plan, BroadcastState* state, ShardContext* shard)
      : plan_(plan), state_(*state), shard_(*shard) {}

  Sends OnInit(NodeId from, const Frame& frame);
  // Handles a probe. From the root it asks whether its value is in force. The answer is a reply if
  // it is, else a waiting frame with the ranks for which the value waits, or with the root's own
  // rank when the value has not arrived. From any other worker the probe says that it has the
  // value.
  Sends OnProbe(NodeId from, const FrameHeader& header);
  // Handles a worker's fetch of the value. If the fetch carries a digest and it is the value's, the
  // answer is a header without the value's bytes.
  Sends OnFetch(NodeId from, const Frame& frame);
  // Handles the question of a worker that has joined later, at which step the key stood. Until then
  // it counts as behind, so that a key that is rebuilt meanwhile stands there, too.
  Sends OnPosition(NodeId from, const FrameHeader& header);
  // Puts the next value in force if nobody who may still ask for the one before is left, and sends
  // it to those who have asked for it. For a roster that has changed.
  Sends OnRoster() { return PutNextInForce(); }

 private:
  absl::Status CheckFetch(const Frame& frame) const;
  // Returns the value in force, without its bytes where the digest of the worker at this place
  // shows that it has them.
  Frame ValueFor(Place place);
  absl::StatusOr<Place> PlaceOf(NodeId from, Epoch epoch) const {
    return shard_.PlaceOf(*state_.places, from, epoch);
  }
  absl::Status CheckStep(const FrameHeader& header) const;
  absl::Status CheckInit(const Frame& frame, Rank rank) const;
  absl::Status CheckNobodyLeaves(Step step) const;
  bool IsRepeat(const Frame& frame, Rank rank) const;
  std::vector<Rank> RanksBehind() const;
  void NoteHas(Place place, Step step);
  Sends PutNextInForce();
  Sends TellRoot();

  FrameHeader AnswerOf(FrameType type, Step step) const;

  const KeyPlan& plan_;
  BroadcastState& state_;
  ShardContext& shard_;
};

}  // namespace bdn

#endif  // BANDONEON_SERVER_BROADCAST_KEY_H_
