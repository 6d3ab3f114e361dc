#include "worker/pipeline/stages.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>

#include "common/base/draw.h"
#include "common/base/status.h"
#include "common/wire/headers.h"
#include "common/wire/message.h"
#include "compressors/memory/error_feedback.h"
#include "compressors/memory/sign_step.h"
#include "kernels/float_kernels.h"
#include "worker/pipeline/chunked_payload.h"

namespace bdn {
namespace {

// Returns the sources' part [offset, offset + n) where all are float32 and not encoded; else an
// empty list.
std::vector<ScaledFloats> PlainSources(const PushSources& sources, uint64_t offset) {
  std::vector<ScaledFloats> plain;
  for (const PushSource& source : sources) {
    if (source.codec != nullptr || source.data.dtype != DType::kFloat32) return {};
    plain.push_back({source.data.f32() + offset, source.scale});
  }
  return plain;
}

// Sums the sources into the segment's data, a cache's worth at a time, so that each source is read
// once from memory.
void SumSources(const ExchangeSegment& segment) {
  const PushSources& sources = *segment.sources;
  if (const auto plain = PlainSources(sources, segment.source_offset); !plain.empty()) {
    SumScaled(plain, static_cast<float*>(segment.data.data), segment.data.n);
    return;
  }
  const bool is_encoded = std::any_of(sources.begin(), sources.end(), [](const PushSource& source) {
    return source.codec != nullptr;
  });
  // With encoded sources a whole chunk at a time, cut at chunk boundaries: a chunk that is cut
  // elsewhere would be decoded twice.
  const size_t most = is_encoded ? kChunkElements : EncodeSource::kTile;
  for (size_t at = 0; at < segment.data.n;) {
    const uint64_t offset = segment.source_offset + at;
    const size_t to_boundary = most - offset % most;
    const MutableView tile = segment.data.Sub(at, std::min(to_boundary, segment.data.n - at));
    for (size_t i = 0; i < sources.size(); ++i) {
      const PushSource& source = sources[i];
      if (source.codec != nullptr) {
        DecodeChunks(*source.codec, source.payload, segment.source_elements, offset, source.scale,
                     i > 0, tile);
      } else if (i == 0) {
        ConvertScaled(source.data.Sub(offset, tile.n), source.scale, tile);
      } else {
        AddScaled(source.data.Sub(offset, tile.n), source.scale, tile);
      }
    }
    at += tile.n;
  }
}

// Returns the terms of error feedback for segment i.
Feedback SegmentFeedback(const DeclaredKey& key, const Exchange& exchange, size_t i, size_t offset,
                         LinkMemory* memory) {
  const ExchangeSegment& segment = exchange.segments[i];
  const bool momentum = key.entry.momentum > 0;
  return {.g = segment.data,
          .options = {.scale = PushScale(exchange, segment),
                      .decay = exchange.feedback_decay,
                      .momentum = key.entry.momentum},
          .residual = memory->residual.data() + offset,
          .momentum = momentum ? memory->momentum.data() + offset : nullptr};
}

bool WantsLeftOut(const Exchange& exchange) {
  return std::any_of(exchange.segments.begin(), exchange.segments.end(),
                     [](const ExchangeSegment& segment) { return segment.left_out != nullptr; });
}

// Encodes a push that keeps no residual, but whose callers want what the codec leaves out: error
// feedback with a residual that begins at 0.
absl::StatusOr<size_t> EncodeAndLeaveOut(const SegmentedCodec& codec, const Draw& draw,
                                         const Exchange& exchange, MutableByteSpan out) {
  std::vector<std::vector<float>> unwanted;
  std::vector<SegmentedCodec::FeedbackInput> inputs;
  for (const ExchangeSegment& segment : exchange.segments) {
    float* residual = segment.left_out;
    // The other segments of a fused frame need one, too, although nobody wants it.
    if (residual == nullptr) residual = unwanted.emplace_back(segment.data.n).data();
    if (segment.present) std::fill_n(residual, segment.data.n, 0.0f);
    inputs.push_back({{.g = segment.data,
                       .options = {.scale = PushScale(exchange, segment)},
                       .residual = residual},
                      segment.present});
  }
  return codec.EncodeFeedback(inputs, draw, out);
}

// Measures a payload that error feedback has just written.
void MonitorLink(const SegmentedCodec& codec, const DeclaredKey& key, const Exchange& exchange,
                 ByteSpan payload, LinkMemory* memory) {
  WorstOf worst;
  SegmentedCodec::Segments segments(codec, payload);
  for (size_t i = 0; i < exchange.segments.size(); ++i) {
    const std::optional<ByteSpan> of_segment = segments.Next();
    if (!of_segment.has_value()) continue;
    const Feedback after = SegmentFeedback(key, exchange, i, codec.segment_offset(i), memory);
    worst.Add(i, MeasureFeedback(codec.codec(), after, *of_segment));
  }
  memory->monitor.Note(exchange.step, worst.all, key.tensor_names[worst.segment]);
}

// Returns the bytes used, or InvalidArgument when a value is not finite.
absl::StatusOr<size_t> EncodePayload(const EncodeContext& context, const SegmentedCodec& codec,
                                     const DeclaredKey& key, LinkMemory* memory, Exchange* exchange,
                                     MutableByteSpan out) {
  const Draw draw = PushDraw(context, key, *exchange);
  if (!key.has_memory()) {
    if (WantsLeftOut(*exchange)) return EncodeAndLeaveOut(codec, draw, *exchange, out);
    std::vector<SegmentedCodec::Input> inputs;
    for (const ExchangeSegment& segment : exchange->segments) {
      inputs.push_back({segment.data, PushScale(*exchange, segment), segment.present});
    }
    return codec.Encode(inputs, draw, out);
  }
  memory->residual.resize(key.entry.elements);
  if (key.entry.momentum > 0) memory->momentum.resize(key.entry.elements);
  // Kept in the exchange, because Undo must divide by the very decay that was used, and the
  // learning rate changes with the step.
  exchange->feedback_decay = PushDecay(key, *memory, *exchange);
  std::vector<SegmentedCodec::FeedbackInput> inputs;
  for (size_t i = 0; i < exchange->segments.size(); ++i) {
    inputs.push_back({SegmentFeedback(key, *exchange, i, codec.segment_offset(i), memory),
                      exchange->segments[i].present});
  }
  LinkMonitor& monitor = memory->monitor;
  if (key.link.codecs.push_feedback.on && !monitor.is_on()) {
    monitor.Begin(context.quality, key.entry, key.tensor_names[0]);
  }
  // Changes residual and momentum only if every value is finite.
  auto used = codec.EncodeFeedback(inputs, draw, out);
  monitor.CountEncoding(used.ok());
  if (!used.ok()) return used;
  NoteMemoryUsed(memory, exchange);
  if (monitor.IsDue(exchange->step)) MonitorLink(codec, key, *exchange, out.first(*used), memory);
  return used;
}

}  // namespace

FrameHeader PushHeaderOf(const DeclaredKey& key, const Exchange& exchange) {
  FrameHeader header = PushHeader(key.entry.key, exchange.step, key.entry.elements);
  header.weight = exchange.weight;
  header.learning_rate = exchange.learning_rate;
  header.program_steps = exchange.program_steps;
  header.priority = exchange.priority;
  return header;
}

Draw PushDraw(const EncodeContext& context, const DeclaredKey& key, const Exchange& exchange) {
  const bool shared = key.link.codecs.Push(exchange.step).codec().shares_draw();
  return Draw({.run_seed = context.run_seed,
               .tensor_name_hash = key.link.name_hash,
               .partition = key.entry.key.partition(),
               .step = exchange.step,
               .purpose = shared ? DrawPurpose::kShared : DrawPurpose::kWorkerEncode,
               .rank = shared ? Draw::kSharedRank : context.rank});
}

float PushScale(const Exchange& exchange, const ExchangeSegment& segment) {
  return segment.sources != nullptr ? 1.0f : exchange.weight / segment.loss_scale;
}

// Without error feedback the residual is scratch memory, and nothing of it goes into the next push.
float PushDecay(const DeclaredKey& key, const LinkMemory& memory, const Exchange& exchange) {
  const LinkFeedback& link = key.link.codecs.push_feedback;
  if (!link.on) return 0.0f;
  return FeedbackDecay(link.decay, link.learning_rate_correction, memory.previous_learning_rate,
                       exchange.learning_rate);
}

void NoteMemoryUsed(LinkMemory* memory, Exchange* exchange) {
  exchange->uses_memory = true;
  // For UndoPush, which puts it back.
  exchange->replaced_learning_rate = memory->previous_learning_rate;
  memory->previous_learning_rate = exchange->learning_rate;
}

void FillNaN(MutableView y) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  switch (y.dtype) {
    case DType::kFloat64:
      std::fill_n(static_cast<double*>(y.data), y.n, std::numeric_limits<double>::quiet_NaN());
      break;
    case DType::kFloat32:
      std::fill_n(y.f32(), y.n, nan);
      break;
    case DType::kFloat16:
      std::fill_n(static_cast<uint16_t*>(y.data), y.n, FloatToHalf(nan));
      break;
    default:
      std::fill_n(static_cast<uint16_t*>(y.data), y.n, FloatToBFloat16(nan));
      break;
  }
}

void EncodePush(const EncodeContext& context, const DeclaredKey& key, LinkMemory* memory,
                Exchange* exchange) {
  const SegmentedCodec& codec = key.link.codecs.Push(exchange->step);
  FrameHeader header = PushHeaderOf(key, *exchange);
  bool any_present = false;
  bool is_wanted = false;
  for (const ExchangeSegment& segment : exchange->segments) {
    any_present |= segment.present;
    is_wanted |= segment.data.data != nullptr;
  }
  if (!any_present) {
    // No payload, but still a push: the round is not complete without each worker's.
    header.flags = is_wanted ? kFlagAbsent : kFlagAbsent | kFlagUnwanted;
    exchange->push = Frame{header, {}};
    return;
  }
  for (const ExchangeSegment& segment : exchange->segments) {
    if (segment.present && segment.sources != nullptr) SumSources(segment);
  }
  Buffer payload = context.pool->Get(codec.MaxEncodedBytes());
  const auto used = EncodePayload(context, codec, key, memory, exchange, payload.mutable_span());
  if (!used.ok()) {
    header.flags = kFlagNonFinite;
    exchange->push = Frame{header, {}};
    return;
  }
  // Asks the server, which decides for all workers at once.
  if (memory->monitor.WantsUncompressed() || memory->guesses.WantsUncompressed()) {
    header.flags = kFlagUncompressed;
  }
  header.codec = static_cast<uint8_t>(codec.codec().id());
  exchange->push = MakeFrame(header, payload.Prefix(*used), context.with_checksum);
}

absl::Status CheckReply(const DeclaredKey& key, const Exchange& exchange, const Frame& reply) {
  BDN_RETURN_IF_ERROR(CheckPayload(reply));
  // The flag may stand in a reply only if the push had it.
  if (reply.header.flags & ~exchange.push.header.flags & kFlagUnwanted) {
    return Internal("the server's reply lacks its payload, which was asked for");
  }
  if (!HasPayload(reply.header.flags)) {
    if (reply.payload.empty()) return absl::OkStatus();
    return Internal("a reply with flags 0x%02x carries a payload", reply.header.flags);
  }
  const SegmentedCodec& codec = key.link.codecs.Pull(exchange.step);
  if (reply.header.codec != static_cast<uint8_t>(codec.codec().id())) {
    return Internal("the server replied with codec %d, where %s was declared", reply.header.codec,
                    codec.codec().spec());
  }
  const absl::Status valid = codec.Validate(reply.payload.span());
  return valid.ok() ? valid
                    : Internal("the server's reply is no valid payload: %s", valid.message());
}

bool LacksReplica(const DeclaredKey& key, const LinkMemory& memory, const Frame& reply) {
  return key.link.codecs.keeps_replica() && HasPayload(reply.header.flags) &&
         memory.replica->step != reply.header.base_step;
}

void NoteAbsent(const DeclaredKey& key, const Frame& reply, Exchange* exchange) {
  if (reply.header.flags & kFlagNonFinite) return;
  const bool all_absent = (reply.header.flags & kFlagAbsent) != 0;
  const SegmentedCodec& codec = key.link.codecs.Pull(exchange->step);
  for (size_t i = 0; i < exchange->segments.size(); ++i) {
    exchange->segments[i].absent_everywhere = all_absent || !codec.Present(reply.payload.span(), i);
  }
}

absl::Status TakeReplica(const DeclaredKey& key, const Frame& value, LinkMemory* memory,
                         Exchange* exchange) {
  const size_t i = exchange->segments_fetched;
  const SegmentedCodec& layout = *key.link.codecs.pull;
  const size_t n = layout.segment_elements(i);
  if (value.header.base_step != exchange->step || value.payload.size() != n * sizeof(float)) {
    return Internal(
        "tensor '%s': asked for the weights of step %d, %d elements, and got %d bytes of step %d",
        key.tensor_names[i], exchange->step, n, value.payload.size(), value.header.base_step);
  }
  MutexLock lock(&memory->replica->mu);
  memory->replica->step.reset();  // until all segments are here
  memory->replica->values.resize(key.entry.elements);
  float* replica = memory->replica->values.data() + layout.segment_offset(i);
  DecodeFloats(value.payload.span(), {replica, n});
  const ExchangeSegment& segment = exchange->segments[i];
  const bool is_wanted = segment.data.data != nullptr && !segment.absent_everywhere;
  if (is_wanted) std::copy_n(replica, n, segment.data.f32());
  if (i + 1 == layout.num_segments()) memory->replica->step = exchange->step;
  return absl::OkStatus();
}

namespace {

// Applies a payload to the replica of segment i, and copies that to the caller's tensor.
void DecodeWeights(const DeclaredKey& key, const Exchange& exchange, ByteSpan payload, size_t i,
                   LinkMemory* memory) {
  const SegmentedCodec& layout = key.link.codecs.Pull(exchange.step);
  const Codec& codec = layout.codec();
  const MutableView wanted = exchange.segments[i].data;
  // Whole weights need no replica, and a caller that does not want them needs none either.
  if (!key.link.codecs.keeps_replica()) {
    if (wanted.data != nullptr) codec.Decode(payload, 1.0f, wanted);
    if (memory->copy != nullptr) {
      codec.Decode(payload, 1.0f,
                   {memory->copy->values.data() + layout.segment_offset(i), DType::kFloat32,
                    layout.segment_elements(i)});
    }
    return;
  }
  const size_t n = layout.segment_elements(i);
  const MutableView replica{memory->replica->values.data() + layout.segment_offset(i),
                            DType::kFloat32, n};
  switch (key.link.codecs.Reply(exchange.step)) {
    case ReplyKind::kDelta:
      codec.DecodeAdd(payload, 1.0f, replica);
      break;
    case ReplyKind::kSigns: {
      std::vector<float> signs(n);
      codec.Decode(payload, 1.0f, {signs.data(), DType::kFloat32, n});
      // The worker repeats the server's step from its signs, with the same rounding, so that both
      // hold the same bits.
      ApplySigns(MakeSignStep(key.link.rule.option("eta"), key.link.rule.option("decay"),
                              exchange.learning_rate),
                 signs.data(), n, replica.f32());
      break;
    }
    default:
      codec.Decode(payload, 1.0f, replica);
      break;
  }
  if (wanted.data != nullptr) std::copy_n(replica.f32(), n, wanted.f32());
}

void DecodePayload(const DeclaredKey& key, ByteSpan reply, LinkMemory* memory, Exchange* exchange) {
  const SegmentedCodec& codec = key.link.codecs.Pull(exchange->step);
  SegmentedCodec::Segments segments(codec, reply);
  for (size_t i = 0; i < exchange->segments.size(); ++i) {
    ExchangeSegment& segment = exchange->segments[i];
    const std::optional<ByteSpan> payload = segments.Next();
    if (!payload.has_value() || segment.absent_everywhere) continue;
    if (key.link.codecs.reply != ReplyKind::kAggregate) {
      DecodeWeights(key, *exchange, *payload, i, memory);
    } else if (segment.data.data != nullptr) {
      segment.guessed = codec.codec().DecodeCounting(*payload, segment.loss_scale, segment.data);
    }
  }
}

}  // namespace

void DecodeReply(const DeclaredKey& key, const Frame& reply, LinkMemory* memory,
                 Exchange* exchange) {
  exchange->nonfinite = (reply.header.flags & kFlagNonFinite) != 0;
  // Before the tensors are filled with NaN: Undo needs the gradients that they still hold.
  if (exchange->nonfinite) UndoPush(key, memory, exchange);
  NoteAbsent(key, reply, exchange);
  for (const ExchangeSegment& segment : exchange->segments) {
    if (exchange->nonfinite && segment.data.data != nullptr) FillNaN(segment.data);
  }
  if (!HasPayload(reply.header.flags)) return;
  Replica* const kept =
      key.link.codecs.keeps_replica() ? memory->replica.get() : memory->copy.get();
  if (kept == nullptr) return DecodePayload(key, reply.payload.span(), memory, exchange);
  MutexLock lock(&kept->mu);
  DecodePayload(key, reply.payload.span(), memory, exchange);
  kept->step = exchange->step;  // of a copy nobody asks
}

void UndoPush(const DeclaredKey& key, LinkMemory* memory, Exchange* exchange) {
  // Makes a second call harmless, and skips pushes that were absent or not finite, which have left
  // the residual alone.
  if (!exchange->uses_memory) return;
  exchange->uses_memory = false;
  const SegmentedCodec& codec = key.link.codecs.Push(exchange->step);
  SegmentedCodec::Segments segments(codec, exchange->push.payload.span());
  std::vector<float> decoded;
  for (size_t i = 0; i < exchange->segments.size(); ++i) {
    const std::optional<ByteSpan> payload = segments.Next();
    if (!payload.has_value()) continue;
    decoded.resize(codec.segment_elements(i));
    codec.codec().Decode(*payload, 1.0f, {decoded.data(), DType::kFloat32, decoded.size()});
    // Undo restores the residual from the gradient, and the callers may have overwritten that. So
    // the decoded payload is added to the residual instead (Owe): the next push then carries all
    // that this one was to carry. The momentum keeps the step, as the gradient does reach the
    // servers in the end. Without error feedback the residual is scratch memory, and the push is
    // lost.
    if (exchange->given_back) {
      if (!key.link.codecs.push_feedback.on) continue;
      Owe(decoded, memory->residual.data() + codec.segment_offset(i));
      continue;
    }
    Feedback step = SegmentFeedback(key, *exchange, i, codec.segment_offset(i), memory);
    // Undo inverts EncodeFeedback: e <- (e + d - a * g - mu * m) / rho. UndoDecay replaces a rho of
    // 0.
    step.options.decay = UndoDecay(step.options.decay);
    Undo(step, decoded.data());
  }
  // An owed push leaves a residual of this step, and so of this step's learning rate.
  if (!exchange->given_back) memory->previous_learning_rate = exchange->replaced_learning_rate;
}

}  // namespace bdn
