#ifndef BANDONEON_WORKER_PIPELINE_STAGES_H_
#define BANDONEON_WORKER_PIPELINE_STAGES_H_

#include "absl/status/status.h"
#include "common/base/buffer.h"
#include "worker/exchange.h"

// The two computing stages, as plain functions of an exchange that the caller owns. float32 or
// 64-bit sums, AMP's loss scale, error feedback and momentum meet here (proto/wire_format.md,
// "Values").

namespace bdn {

struct EncodeContext {
  uint64_t run_seed = 0;
  Rank rank = 0;
  BufferPool* pool = nullptr;  // borrowed
};

// Fills exchange->push from the caller's tensors: p = (weight / loss_scale) * g + memory, encoded.
// A gradient that is not finite, or absent in every segment, gives a header-only push and leaves
// the memory alone. Reads the caller's memory; three passes at most.
void EncodePush(const EncodeContext& context, WorkerKey* key, Exchange* exchange);

// Whether `reply` builds on a replica that this worker does not hold, so that the replica as it was
// left by that very reply must be fetched instead. REQUIRES: CheckReply is OK.
bool LacksReplica(const WorkerKey& key, const Frame& reply);

// Notes which segments nobody had. REQUIRES: CheckReply is OK.
void NoteAbsent(const WorkerKey& key, const Frame& reply, Exchange* exchange);

// Takes in a segment's replica, fetched for a reply whose absent segments were noted. Internal: it
// is not of the reply's step.
absl::Status TakeReplica(WorkerKey* key, Exchange* exchange, size_t segment, const Frame& value);

// OK when `reply` may be decoded. DataLoss: damaged on the way, ask again. Internal: the server and
// we disagree about the codec.
absl::Status CheckReply(const WorkerKey& key, const Exchange& exchange, const Frame& reply);

// Writes the result into the caller's tensors: an aggregate times each one's loss scale, or
// weights. A non-finite round fills them with NaN and takes this worker's own memory back.
// REQUIRES: CheckReply is OK.
void DecodeReply(WorkerKey* key, Exchange* exchange, const Frame& reply);

// Takes back what EncodePush did to the memory, when the round came to nothing. Reads the caller's
// tensors, which must still hold the gradients. No-op when the memory was not used.
void UndoPush(WorkerKey* key, Exchange* exchange);

}  // namespace bdn

#endif  // BANDONEON_WORKER_PIPELINE_STAGES_H_
