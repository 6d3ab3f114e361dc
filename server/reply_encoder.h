#ifndef BANDONEON_SERVER_REPLY_ENCODER_H_
#define BANDONEON_SERVER_REPLY_ENCODER_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/buffer.h"
#include "common/telemetry/stage_times.h"
#include "link/link_monitor.h"
#include "server/key_plan.h"
#include "server/round.h"
#include "server/state_parts.h"

// The arithmetic of a round, as a plain function: the contributions and the state that the server
// holds give the reply and the new state. The same plan, contributions, parts and seed give the
// same bits, so a backup that is given the same contributions reaches the same state as the server
// that it follows.

namespace bdn {

// The surroundings of a round's arithmetic: its seed, memory and counters.
struct ReplyContext {
  uint64_t run_seed = 0;
  BufferPool* pool = nullptr;  // borrowed; null: the heap
  // Borrowed: memory for a sum that was not begun before; grows as needed.
  std::vector<double>* scratch = nullptr;
  // Borrowed; null: no times are counted. The end of the sum and the rule's step each end a lap of
  // it; the caller ends the lap of the encoding, with the work that it still does on the reply.
  StageLaps* laps = nullptr;
  // Borrowed, the monitor of the replies' link; null: the link is not watched.
  LinkMonitor* monitor = nullptr;
};

// The result of a round that goes to all workers: a payload, or one of the flags of frames.
struct Reply {
  uint8_t flags = 0;
  Buffer payload;  // of whole weights: the very block in which the server holds them
  // The step that left the weights on which the payload builds; 0 where there are none.
  Step base_step = 0;
};

// Ends the sum of the contributions, makes the mean or the rule's step from it, and encodes that
// once for all workers, with the replies' error feedback or delta. Moves `parts` on to the round's
// step; they keep their values where the reply has a flag, and after an error:
//   InvalidArgument  the learning rate is below zero
//   Aborted          a segment's weights were never set; or the step made the weights infinite:
//                    then they stay so until they are set again
// The round is used up. REQUIRES: it is complete, its payloads are valid, and all of its learning
// rates are equal.
absl::StatusOr<Reply> EncodeReply(const ReplyContext& context, const KeyPlan& plan, Round* round,
                                  StateParts* parts);

}  // namespace bdn

#endif  // BANDONEON_SERVER_REPLY_ENCODER_H_
