#include "worker/pipeline/stages.h"

#include <cmath>
#include <limits>
#include <utility>

#include "common/base/draw.h"
#include "common/base/status.h"
#include "compressors/memory/error_feedback.h"

namespace bdn {
namespace {

float PushScale(const Partition& partition, const PartitionSegment& segment) {
  return partition.weight / segment.loss_scale;
}

FeedbackOptions Feedback(const WorkerKey& key, const Partition& partition,
                         const PartitionSegment& segment) {
  return {.scale = PushScale(partition, segment),
          .decay = key.codecs.push_feedback ? 1.0f : 0.0f,
          .momentum = key.entry.momentum};
}

float* Momentum(WorkerKey* key, size_t offset) {
  return key->entry.momentum > 0 ? key->momentum.data() + offset : nullptr;
}

// Takes one segment's memory back, given what was decoded of it.
void UndoSegment(WorkerKey* key, const Partition& partition, size_t i, size_t offset,
                 const float* decoded) {
  FeedbackOptions options = Feedback(*key, partition, partition.segments[i]);
  options.decay = 1.0f;  // without feedback the residual is scratch
  Undo(partition.segments[i].data, options, decoded, key->residual.data() + offset,
       Momentum(key, offset));
}

// Looks before the first segment is touched, so that a later one cannot make it come and go to
// rounding. A single one is looked at by Accumulate itself.
bool AllSegmentsFinite(const Partition& partition) {
  if (partition.segments.size() == 1) return true;
  for (const PartitionSegment& segment : partition.segments) {
    if (segment.present && !AllFinite(segment.data, PushScale(partition, segment))) return false;
  }
  return true;
}

// Adds every present segment into the memory, or none: false when a sum would not be finite.
bool AccumulateAll(const SegmentedCodec& codec, WorkerKey* key, const Partition& partition) {
  key->residual.resize(key->entry.elements);
  if (key->entry.momentum > 0) key->momentum.resize(key->entry.elements);
  for (size_t i = 0; i < partition.segments.size(); ++i) {
    if (!partition.segments[i].present) continue;
    const size_t offset = codec.segment_offset(i);
    const absl::Status status =
        Accumulate(partition.segments[i].data, Feedback(*key, partition, partition.segments[i]),
                   key->residual.data() + offset, Momentum(key, offset));
    if (status.ok()) continue;
    for (size_t j = 0; j < i; ++j) {
      if (!partition.segments[j].present) continue;
      const std::vector<float> nothing(codec.segment_elements(j), 0.0f);
      UndoSegment(key, partition, j, codec.segment_offset(j), nothing.data());
    }
    return false;
  }
  return true;
}

// The bytes used, or nothing when a value is not finite.
absl::StatusOr<size_t> EncodePayload(const SegmentedCodec& codec, const Draw& draw, WorkerKey* key,
                                     Partition* partition, MutableByteSpan out) {
  if (!key->has_memory()) {
    std::vector<SegmentedCodec::Input> inputs;
    for (const PartitionSegment& segment : partition->segments) {
      inputs.push_back({segment.data, PushScale(*partition, segment), segment.present});
    }
    return codec.Encode(inputs, draw, out);
  }
  if (!AllSegmentsFinite(*partition) || !AccumulateAll(codec, key, *partition)) {
    return InvalidArgument("not finite");
  }
  partition->uses_memory = true;
  std::vector<uint8_t> present;
  for (const PartitionSegment& segment : partition->segments) present.push_back(segment.present);
  return codec.EncodeResidual(present, key->residual.data(), draw, out);
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

}  // namespace

void EncodePush(const EncodeContext& context, WorkerKey* key, Partition* partition) {
  const SegmentedCodec& codec = key->codecs.Push(partition->step);
  FrameHeader header;
  header.type = FrameType::kPush;
  header.key = key->entry.key;
  header.step = partition->step;
  header.num_elements = key->entry.elements;
  header.weight = partition->weight;
  header.learning_rate = partition->learning_rate;

  bool any_present = false;
  for (const PartitionSegment& segment : partition->segments) any_present |= segment.present;
  if (!any_present) {
    header.flags = kFlagAbsent;
    partition->push = Frame{header, {}};
    return;
  }
  const Draw draw({.run_seed = context.run_seed,
                   .tensor_name_hash = key->name_hash,
                   .partition = key->entry.key.partition(),
                   .step = partition->step,
                   .purpose = DrawPurpose::kWorkerEncode,
                   .rank = context.rank});
  Buffer payload = context.pool->Get(codec.MaxEncodedBytes());
  const auto used = EncodePayload(codec, draw, key, partition, payload.mutable_span());
  if (!used.ok()) {
    header.flags = kFlagNonFinite;
    partition->push = Frame{header, {}};
    return;
  }
  header.codec = static_cast<uint8_t>(codec.codec().id());
  partition->push = MakeFrame(header, payload.Prefix(*used));
}

absl::Status CheckReply(const WorkerKey& key, const Partition& partition, const Frame& reply) {
  BDN_RETURN_IF_ERROR(CheckPayload(reply));
  if (reply.header.flags != 0) {
    if (reply.payload.empty()) return absl::OkStatus();
    return Internal("a reply that is absent or non-finite carries a payload");
  }
  const SegmentedCodec& codec = key.codecs.Pull(partition.step);
  if (reply.header.codec != static_cast<uint8_t>(codec.codec().id())) {
    return Internal("the server replied with codec %d, where %s was declared", reply.header.codec,
                    codec.codec().spec());
  }
  const absl::Status valid = codec.Validate(reply.payload.span());
  return valid.ok() ? valid
                    : Internal("the server's reply is no valid payload: %s", valid.message());
}

void DecodeReply(WorkerKey* key, Partition* partition, const Frame& reply) {
  partition->nonfinite = (reply.header.flags & kFlagNonFinite) != 0;
  if (partition->nonfinite) UndoPush(key, partition);
  const bool all_absent = (reply.header.flags & kFlagAbsent) != 0;
  const SegmentedCodec& codec = key->codecs.Pull(partition->step);
  for (size_t i = 0; i < partition->segments.size(); ++i) {
    PartitionSegment& segment = partition->segments[i];
    if (partition->nonfinite) {
      if (segment.data.data != nullptr) FillNaN(segment.data);
      continue;
    }
    segment.absent_everywhere = all_absent || !codec.Present(reply.payload.span(), i);
    if (segment.absent_everywhere || segment.data.data == nullptr) continue;
    codec.DecodeSegment(reply.payload.span(), i, segment.loss_scale, segment.data);
  }
}

void UndoPush(WorkerKey* key, Partition* partition) {
  if (!partition->uses_memory) return;
  partition->uses_memory = false;
  const SegmentedCodec& codec = key->codecs.Push(partition->step);
  std::vector<float> decoded;
  for (size_t i = 0; i < partition->segments.size(); ++i) {
    if (!partition->segments[i].present) continue;
    decoded.assign(codec.segment_elements(i), 0.0f);
    codec.DecodeSegment(partition->push.payload.span(), i, 1.0f,
                        {decoded.data(), DType::kFloat32, decoded.size()});
    UndoSegment(key, *partition, i, codec.segment_offset(i), decoded.data());
  }
}

}  // namespace bdn
