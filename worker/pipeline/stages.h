#ifndef BANDONEON_WORKER_PIPELINE_STAGES_H_
#define BANDONEON_WORKER_PIPELINE_STAGES_H_

#include "absl/status/status.h"
#include "common/base/buffer.h"
#include "common/base/draw.h"
#include "worker/pipeline/exchange.h"

// The arithmetic of an exchange, as plain functions of a key, its LinkMemory and the exchange; the
// caller owns all three. Float32 or float64 sums, the loss scale of mixed precision, error feedback
// and momentum meet here (proto/wire_format.md, "Values"). REQUIRES for all that take a reply,
// except CheckReply: CheckReply of it is OK.

namespace bdn {

// The facts of a worker that all of its encodings need.
struct EncodeContext {
  uint64_t run_seed = 0;
  Rank rank = 0;
  BufferPool* pool = nullptr;  // borrowed
  bool with_checksum = true;
  QualityWatch* quality = nullptr;  // borrowed; null: links are not watched
};

// Fills exchange->push from the callers' tensors: p = (weight / loss_scale) * g + residual,
// encoded. For a segment with sources g is their sum, which also becomes the segment's data. A
// gradient that is not finite, or absence in every segment, gives a push without a payload and
// leaves `memory` unchanged. Where no segment has data for the result, the push says that the
// result is not wanted. Reads the callers' tensors in at most three passes, and each source in one.
void EncodePush(const EncodeContext& context, const DeclaredKey& key, LinkMemory* memory,
                Exchange* exchange);

// The beginning of EncodePush, shared with the devices' stages: the header without codec and flags,
// the draw, the factor of a segment's data, and the factor of the residual.
FrameHeader PushHeaderOf(const DeclaredKey& key, const Exchange& exchange);
Draw PushDraw(const EncodeContext& context, const DeclaredKey& key, const Exchange& exchange);
float PushScale(const Exchange& exchange, const ExchangeSegment& segment);
float PushDecay(const DeclaredKey& key, const LinkMemory& memory, const Exchange& exchange);
// The end of EncodePush, where it has changed `memory`.
void NoteMemoryUsed(LinkMemory* memory, Exchange* exchange);

// OK: `reply` may be decoded. DataLoss: it was damaged on the way; ask again. Internal: the server
// and this worker disagree about the codec, or about whether the result is wanted.
absl::Status CheckReply(const DeclaredKey& key, const Exchange& exchange, const Frame& reply);

// Returns whether `reply` builds on a replica that this worker does not hold. Then the replica must
// be fetched instead, as that very reply left it.
bool LacksReplica(const DeclaredKey& key, const LinkMemory& memory, const Frame& reply);

// Notes the segments for which no worker had a gradient.
void NoteAbsent(const DeclaredKey& key, const Frame& reply, Exchange* exchange);

// Takes the replica of segment exchange->segments_fetched, fetched for a reply whose absent
// segments were noted. Internal: it is not of the reply's step, or has a wrong size.
absl::Status TakeReplica(const DeclaredKey& key, const Frame& value, LinkMemory* memory,
                         Exchange* exchange);

// Writes the result into the callers' tensors: an aggregate times each tensor's loss scale, or
// weights. If the round is not finite, it fills them with NaN and undoes this worker's push.
void DecodeReply(const DeclaredKey& key, const Frame& reply, LinkMemory* memory,
                 Exchange* exchange);

// Fills a tensor with NaN, as it is where some worker's gradient was not finite.
void FillNaN(MutableView y);

// Takes back the change that EncodePush made to `memory`, when the round came to nothing. Reads the
// callers' tensors, which must still hold the gradients. Does nothing if `memory` was not changed.
// Where the callers have their tensors back, the push becomes owed instead: with error feedback it
// is added to the residual and goes with the next push, and the momentum keeps the step.
void UndoPush(const DeclaredKey& key, LinkMemory* memory, Exchange* exchange);

}  // namespace bdn

#endif  // BANDONEON_WORKER_PIPELINE_STAGES_H_
