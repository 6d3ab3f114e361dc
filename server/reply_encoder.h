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

// The arithmetic of a round, as a plain function: contributions and what the server holds give the
// reply and what the server holds then. Same plan, contributions, parts and seed, same bits: a
// backup that is given the contributions comes to the state of the server that it follows.

namespace bdn {

struct ReplyContext {
  uint64_t run_seed = 0;
  BufferPool* pool = nullptr;              // borrowed; null: the heap
  std::vector<double>* scratch = nullptr;  // borrowed: of sums not begun yet; grows as needed
  // Borrowed; null: nothing is counted. What ends the sum and what the rule does are laps of it; the
  // encoding is the caller's to end, with what it still does to the reply.
  StageLaps* laps = nullptr;
  LinkMonitor* monitor = nullptr;  // borrowed, of the replies' link; null: it is not watched
};

// What everybody is told: a payload, or one of the flags of frames.
struct Reply {
  uint8_t flags = 0;
  Buffer payload;      // whole weights: the block that the server holds them in
  Step base_step = 0;  // the step that left the weights that the payload builds on; 0 without
};

// Ends the sum of the contributions, makes the mean or the rule's step of the sum, and encodes
// that, with what the replies' link remembers, once for everybody. Moves the parts on to the
// round's step; they keep their values where the reply has a flag, and after an error:
//   InvalidArgument  the learning rate is below zero
//   Aborted          a segment's weights were never set; or the step made the weights infinite:
//                    then they stay so until they are set again
// The round is used up. REQUIRES: it is complete, its payloads are valid, learning rates equal.
absl::StatusOr<Reply> EncodeReply(const ReplyContext& context, const KeyPlan& plan, Round* round,
                                  StateParts* parts);

}  // namespace bdn

#endif  // BANDONEON_SERVER_REPLY_ENCODER_H_
