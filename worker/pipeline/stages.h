#ifndef BANDONEON_WORKER_PIPELINE_STAGES_H_
#define BANDONEON_WORKER_PIPELINE_STAGES_H_

#include "absl/status/status.h"
#include "common/base/buffer.h"
#include "common/base/draw.h"
#include "worker/pipeline/exchange.h"

// The arithmetic of an exchange, as plain functions of a key, its memory and the exchange, which
// the caller owns. Float32 or float64 sums, AMP's loss scale, error feedback and momentum meet here
// (proto/wire_format.md, "Values"). REQUIRES for all that take a reply, except CheckReply:
// CheckReply of it is OK.

namespace bdn {

struct EncodeContext {
  uint64_t run_seed = 0;
  Rank rank = 0;
  BufferPool* pool = nullptr;  // borrowed
  bool with_checksum = true;
  QualityWatch* quality = nullptr;  // borrowed; null: links are not watched
};

// Fills exchange->push from the caller's tensors: p = (weight / loss_scale) * g + memory, encoded; of a
// segment with sources g is their sum, which its data becomes.
// A gradient that is not finite, or absent in every segment, gives a header-only push and leaves
// the memory alone; where no segment has data for the result, the push says that it is unwanted. Reads the caller's memory; three passes at most, and one of each source.
void EncodePush(const EncodeContext& context, const DeclaredKey& key, LinkMemory* memory,
                Exchange* exchange);

// What EncodePush begins with, whatever carries it out: the header without codec and flags, the draw,
// what a segment's data is times, and what the residual is times.
FrameHeader PushHeaderOf(const DeclaredKey& key, const Exchange& exchange);
Draw PushDraw(const EncodeContext& context, const DeclaredKey& key, const Exchange& exchange);
float PushScale(const Exchange& exchange, const ExchangeSegment& segment);
float PushDecay(const DeclaredKey& key, const LinkMemory& memory, const Exchange& exchange);
// And ends with, where it has changed the memory.
void NoteMemoryUsed(LinkMemory* memory, Exchange* exchange);

// OK when `reply` may be decoded. DataLoss: damaged on the way, ask again. Internal: the server and
// we disagree about the codec, or about whether the result is wanted.
absl::Status CheckReply(const DeclaredKey& key, const Exchange& exchange, const Frame& reply);

// Whether `reply` builds on a replica that this worker does not hold, so that the replica as it was
// left by that very reply must be fetched instead.
bool LacksReplica(const DeclaredKey& key, const LinkMemory& memory, const Frame& reply);

// Notes which segments nobody had.
void NoteAbsent(const DeclaredKey& key, const Frame& reply, Exchange* exchange);

// Takes in the replica of segment exchange->segments_fetched, fetched for a reply whose absent
// segments were noted. Internal: it is not of the reply's step.
absl::Status TakeReplica(const DeclaredKey& key, const Frame& value, LinkMemory* memory,
                         Exchange* exchange);

// Writes the result into the caller's tensors: an aggregate times each one's loss scale, or
// weights. A non-finite round fills them with NaN and takes this worker's own memory back.
void DecodeReply(const DeclaredKey& key, const Frame& reply, LinkMemory* memory,
                 Exchange* exchange);

// What a tensor holds where some worker's gradient was not finite.
void FillNaN(MutableView y);

// Takes back what EncodePush did to the memory, when the round came to nothing. Reads the caller's
// tensors, which must still hold the gradients. No-op when the memory was not used. Where the
// callers have their tensors back, what was pushed becomes owed instead: with error feedback it goes
// with the next push, and the momentum keeps the step.
void UndoPush(const DeclaredKey& key, LinkMemory* memory, Exchange* exchange);

}  // namespace bdn

#endif  // BANDONEON_WORKER_PIPELINE_STAGES_H_
