#ifndef BANDONEON_SERVER_DENSE_KEY_H_
#define BANDONEON_SERVER_DENSE_KEY_H_

#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/certs/digest.h"
#include "common/telemetry/stage_times.h"
#include "common/wire/frame.h"
#include "link/link_monitor.h"
#include "server/key_plan.h"
#include "server/round.h"
#include "server/shard_context.h"
#include "server/state_parts.h"

namespace bdn {

// Everything a server holds of one dense key. A value.
struct DenseState {
  StateParts parts;
  LinkMonitor monitor;     // of the replies' link, where that has a memory
  Rank init_root = -1;     // the one rank that sets parts
  uint32_t last_init = 0;  // the number of its last request that was taken

  Step last_step = 0;  // the last closed
  Frame last_reply;    // of the last step that came to a result; sent again whenever asked
  Frame last_failure;  // an error: of the steps since then, where the last has failed
  Round round;         // the open one, if any
  // Payloads of values that may still be on their way to somebody.
  absl::flat_hash_map<std::pair<StatePart, size_t>, WeakBuffer> told;  // by part and segment
  // Of parts that somebody may hold already, and as of when `told` is.
  absl::flat_hash_map<std::pair<StatePart, size_t>, Digest> digests;
};

// What a server does with the frames about one dense key (proto/wire_format.md, sections 7 and
// 8.2): each contribution counts once; a round that is complete is closed with a reply that is kept
// until the next one closes; between rounds an init sets, and a fetch is told, a part of the state.
// Everything is checked before anything changes; what is wrong is answered with an error.
//
// Holds nothing: made for one call, on a state and a shard that are borrowed for it.
class DenseKey {
 public:
  DenseKey(const KeyPlan& plan, DenseState* state, ShardContext* shard)
      : plan_(plan), state_(*state), shard_(*shard) {}

  Sends OnPush(NodeId from, const Frame& frame);
  Sends OnProbe(NodeId from, const FrameHeader& header);
  Sends OnInit(NodeId from, const Frame& frame);
  Sends OnFetch(NodeId from, const Frame& frame);
  // REQUIRES an open round. Workers are leaving: if one of them has not pushed to it, it fails and is
  // emptied.
  Sends OnLeaving();
  // All workers are done with the key, which is removed after this: who has pushed to an open round is told.
  Sends OnRetired();

 private:
  bool DecideUncompressed();
  struct PushCheck {
    absl::Status status;
    bool fails_round = false;  // not for the pusher alone: the others cannot go on either
  };
  absl::Status CheckStep(const FrameHeader& header) const;
  // Makes a payload that is lent this process's own where its codec needs that.
  PushCheck CheckPush(Frame* push, Rank rank) const;
  absl::Status CheckDraw(const Frame& frame) const;
  absl::Status CheckMayWait(const Frame& frame, Rank rank) const;
  absl::Status CheckNobodyLeaves(Step step, Rank pusher) const;
  // `laps` has begun with the frame.
  Sends Accept(const Frame& frame, Rank rank, StageLaps* laps);
  Sends CloseRound(StageLaps* laps);
  Sends FailRound(Step step, const absl::Status& why);
  Sends AnswerClosed(NodeId from, const FrameHeader& header);

  absl::StatusOr<size_t> FindSegment(const FrameHeader& header) const;
  bool IsTold(const FrameHeader& init) const;
  absl::Status TakeInit(const Frame& frame, Rank rank, size_t segment);
  Buffer TellPart(StatePart part, size_t segment);
  bool Holds(const Frame& fetch, const Buffer& payload, size_t segment);

  // What was asked of a step by everybody who pushed it.
  FrameHeader PushOf(Step step) const;

  const KeyPlan& plan_;
  DenseState& state_;
  ShardContext& shard_;
};

}  // namespace bdn

#endif  // BANDONEON_SERVER_DENSE_KEY_H_
