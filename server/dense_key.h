#ifndef BANDONEON_SERVER_DENSE_KEY_H_
#define BANDONEON_SERVER_DENSE_KEY_H_

#include <memory>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/certs/digest.h"
#include "common/telemetry/stage_times.h"
#include "common/wire/frame.h"
#include "common/wire/message.h"
#include "link/link_monitor.h"
#include "server/key_plan.h"
#include "server/places.h"
#include "server/round.h"
#include "server/shard_context.h"
#include "server/state_parts.h"

namespace bdn {

// The state that a server holds for one dense key. A value.
struct DenseState {
  // The workers that exchange the key, never null: those that every round waits for.
  std::shared_ptr<const Places> places = std::make_shared<const Places>();
  StateParts parts;
  LinkMonitor monitor;     // watches the replies' link if that keeps a residual or a replica
  Rank init_root = -1;     // the one rank that may set state; -1: none has yet
  uint32_t last_init = 0;  // the number of the last init that was applied

  Step last_step = 0;  // the last step that was closed
  Frame last_reply;    // the reply of the last step with a result, sent again on request
  // The error that answers the steps after last_reply's, if the last of them has failed or an init
  // has skipped it.
  Frame last_failure;
  Round round;  // the open round, if there is one
  // The ranks whose pushes to the open step were dropped with an earlier roster: each pushes them
  // again. Empty once the step is closed.
  std::vector<Rank> pushed_before;
  // Payloads of values that may still be on their way to a worker, by part and segment.
  absl::flat_hash_map<std::pair<StatePart, size_t>, WeakBuffer> told;
  // Digests of parts that a fetch asked about, by part and segment; valid for as long as `told`.
  absl::flat_hash_map<std::pair<StatePart, size_t>, Digest> digests;

  // Sets another roster. The open round starts over: its contributors learn from a probe that they
  // are missing, and send the same bytes again. State that a lost worker had set may be set by
  // another one from now on.
  void SetRoster(std::shared_ptr<const Places> now);
};

// The protocol of one dense key at a server (proto/wire_format.md, sections 7 and 8.2). Each
// contribution counts once. A round that is complete is closed with a reply, which is kept until
// the next round closes. Between rounds an init sets a part of the state, and a fetch reads one.
// Each frame is checked before anything changes; a frame that is wrong is answered with an error.
//
// It holds no state of its own: an object is made for one call, and borrows the key's state and the
// shard for that call. Not thread-safe: used by the shard's thread.
class DenseKey {
 public:
  DenseKey(const KeyPlan& plan, DenseState* state, ShardContext* shard)
      : plan_(plan), state_(*state), shard_(*shard) {}

  Sends OnPush(NodeId from, const Frame& frame);
  Sends OnProbe(NodeId from, const FrameHeader& header);
  Sends OnInit(NodeId from, const Frame& frame);
  Sends OnFetch(NodeId from, const Frame& frame);
  // Fails and empties the open round if a worker that is leaving has not pushed to it. REQUIRES: a
  // round is open.
  Sends OnLeaving();
  // Keeps the reply of the last step as a worker that has it gives it, for those that still ask for
  // it. REQUIRES: CheckGiven is OK.
  void KeepReply(const GivenReply& given);
  // Tells all workers that the open round, if there is one, has failed, because all of them are
  // done with the key. The caller removes the key afterwards.
  Sends OnRetired();

 private:
  bool DecideUncompressed();
  struct PushCheck {
    absl::Status status;
    // The error is for all workers, not for the pusher alone: none of them can go on.
    bool fails_round = false;
  };
  absl::Status CheckStep(const FrameHeader& header) const;
  // Checks a push. First copies a payload that the transport lends, unless the codec's decoding
  // stays in bounds whatever the bytes are: the sender can still change a lent payload.
  PushCheck CheckPush(Frame* push, Place place) const;
  absl::Status CheckDraw(const Frame& frame) const;
  absl::Status CheckMayWait(const Frame& frame, Place place) const;
  absl::Status CheckNobodyLeaves(Step step, Rank pusher) const;
  // Adds a push to the round. `laps` began when the frame was handed to this key.
  Sends Accept(const Frame& frame, Place place, StageLaps* laps);
  Sends CloseRound(StageLaps* laps);
  Sends FailRound(Step step, const absl::Status& why);
  Sends AnswerClosed(NodeId from, const FrameHeader& header);

  // Returns the place of the worker that sent a frame of `epoch`, as ShardContext::PlaceOf.
  absl::StatusOr<Place> PlaceOf(NodeId from, Epoch epoch) const {
    return shard_.PlaceOf(*state_.places, from, epoch);
  }
  Sends ToAll(const Frame& frame) const { return ShardContext::ToAll(*state_.places, frame); }

  absl::StatusOr<size_t> FindSegment(const FrameHeader& header) const;
  bool IsTold(const FrameHeader& init) const;
  absl::Status TakeInit(const Frame& frame, Rank rank, size_t segment);
  Buffer TellPart(StatePart part, size_t segment);
  bool Holds(const Frame& fetch, const Buffer& payload, size_t segment);

  // Returns the header of a request about the step that is not one worker's, for answers to all.
  FrameHeader PushOf(Step step) const;

  const KeyPlan& plan_;
  DenseState& state_;
  ShardContext& shard_;
};

}  // namespace bdn

#endif  // BANDONEON_SERVER_DENSE_KEY_H_
