#include "worker/pipeline/device_stages.h"

#include <utility>
#include <vector>

#include "common/base/status.h"
#include "compressors/memory/error_feedback.h"

namespace bdn {
namespace {

bool HasKernels(const SegmentedCodec& codec) { return MakeDeviceCodec(codec.codec()).ok(); }

absl::Status MoveToDevice(CodecDevice* device, const std::vector<float>& from, DeviceMemory* to) {
  return device->CopyToDevice(std::as_bytes(std::span(from)), to->get());
}

// Moves residual and momentum to `device`, and allocates what the key needs there. After an error
// nothing has changed: the new memory is complete before the old is given up.
absl::Status SettleOn(CodecDevice* device, const DeclaredKey& key, LinkMemory* memory) {
  // The tensor has moved to another device, and devices exchange memory only through the host.
  if (memory->device != nullptr && memory->device != device) BDN_RETURN_IF_ERROR(BringHome(memory));
  if (memory->device == device) return absl::OkStatus();
  const size_t bytes = key.entry.elements * sizeof(float);
  BDN_ASSIGN_OR_RETURN(DeviceMemory residual, device->MakeZeros(bytes));
  DeviceMemory momentum;
  if (key.entry.momentum > 0) {
    BDN_ASSIGN_OR_RETURN(momentum, device->MakeZeros(bytes));
  }
  if (!memory->residual.empty()) {
    BDN_RETURN_IF_ERROR(MoveToDevice(device, memory->residual, &residual));
  }
  // A caller may have set a momentum that the key does not use; that stays with the host.
  const bool moves_momentum = key.entry.momentum > 0 && !memory->momentum.empty();
  if (moves_momentum) BDN_RETURN_IF_ERROR(MoveToDevice(device, memory->momentum, &momentum));
  memory->device = device;
  memory->elements = key.entry.elements;
  memory->device_residual = std::move(residual);
  memory->device_momentum = std::move(momentum);
  memory->residual = {};
  if (moves_momentum) memory->momentum = {};
  return absl::OkStatus();
}

DeviceSource SourceOf(const DeclaredKey& key, const LinkMemory& memory, const Exchange& exchange) {
  const ExchangeSegment& segment = exchange.segments[0];
  DeviceSource source{.x = segment.data.data,
                      .dtype = segment.data.dtype,
                      .n = segment.data.n,
                      .options = {.scale = PushScale(exchange, segment)}};
  if (!key.has_memory()) return source;
  source.options.decay = exchange.feedback_decay;
  source.options.momentum = key.entry.momentum;
  source.residual = static_cast<float*>(memory.device_residual.get());
  source.momentum = static_cast<float*>(memory.device_momentum.get());
  return source;
}

absl::StatusOr<size_t> EncodePayload(const EncodeContext& context, const DeclaredKey& key,
                                     LinkMemory* memory, Exchange* exchange, MutableByteSpan out) {
  if (key.has_memory()) {
    BDN_RETURN_IF_ERROR(SettleOn(exchange->device, key, memory));
    exchange->feedback_decay = PushDecay(key, *memory, *exchange);
  }
  const absl::StatusOr<size_t> used = exchange->device->Encode(
      key.link.codecs.Push(exchange->step).codec(), SourceOf(key, *memory, *exchange),
      PushDraw(context, key, *exchange), out);
  if (used.ok() && key.has_memory()) NoteMemoryUsed(memory, exchange);
  return used;
}

}  // namespace

bool RunsOnDevice(const DeclaredKey& key) {
  const KeyCodecs& codecs = key.link.codecs;
  if (codecs.push == nullptr || key.entry.segments.size() != 1 || codecs.keeps_replica() ||
      key.entry.dtype == DType::kFloat64 || key.entry.elements >= DeviceCodec::kMostElements) {
    return false;
  }
  bool all = HasKernels(*codecs.push) && HasKernels(*codecs.pull);
  if (codecs.uncompressed != nullptr) all = all && HasKernels(codecs.uncompressed->codec);
  for (const CodecStage& stage : codecs.push_stages) all = all && HasKernels(*stage.codec);
  for (const CodecStage& stage : codecs.pull_stages) all = all && HasKernels(*stage.codec);
  return all;
}

absl::Status EncodePushOnDevice(const EncodeContext& context, const DeclaredKey& key,
                                LinkMemory* memory, Exchange* exchange) {
  FrameHeader header = PushHeaderOf(key, *exchange);
  if (!exchange->segments[0].present) {
    header.flags = kFlagAbsent;
    exchange->push = Frame{header, {}};
    return absl::OkStatus();
  }
  const SegmentedCodec& codec = key.link.codecs.Push(exchange->step);
  Buffer payload = context.pool->Get(codec.MaxEncodedBytes());
  const absl::StatusOr<size_t> used =
      EncodePayload(context, key, memory, exchange, payload.mutable_span());
  // A gradient that is not finite is no error of the device: all workers must hear of it.
  if (absl::IsInvalidArgument(used.status())) {
    header.flags = kFlagNonFinite;
    exchange->push = Frame{header, {}};
    return absl::OkStatus();
  }
  BDN_RETURN_IF_ERROR(used.status());
  header.codec = static_cast<uint8_t>(codec.codec().id());
  exchange->push = MakeFrame(header, payload.Prefix(*used), context.with_checksum);
  return absl::OkStatus();
}

absl::Status DecodeReplyOnDevice(const DeclaredKey& key, const Frame& reply, LinkMemory* memory,
                                 Exchange* exchange) {
  const ExchangeSegment& segment = exchange->segments[0];
  const bool is_wanted = segment.data.data != nullptr;
  exchange->nonfinite = (reply.header.flags & kFlagNonFinite) != 0;
  if (exchange->nonfinite) {
    BDN_RETURN_IF_ERROR(UndoPushOnDevice(key, memory, exchange));
    if (!is_wanted) return absl::OkStatus();
    // A round that is not finite is rare, so a copy from the host does, without a kernel of its
    // own.
    std::vector<std::byte> values(segment.data.n * DTypeSize(segment.data.dtype));
    FillNaN({values.data(), segment.data.dtype, segment.data.n});
    return exchange->device->CopyToDevice(values, segment.data.data);
  }
  NoteAbsent(key, reply, exchange);
  if (!HasPayload(reply.header.flags) || !is_wanted) return absl::OkStatus();
  const bool is_aggregate = key.link.codecs.reply == ReplyKind::kAggregate;
  return exchange->device->Decode(key.link.codecs.Pull(exchange->step).codec(),
                                  reply.payload.span(),
                                  {.y = segment.data.data,
                                   .dtype = segment.data.dtype,
                                   .n = segment.data.n,
                                   .scale = is_aggregate ? segment.loss_scale : 1.0f});
}

absl::Status UndoPushOnDevice(const DeclaredKey& key, LinkMemory* memory, Exchange* exchange) {
  if (!exchange->uses_memory) return absl::OkStatus();
  const Codec& codec = key.link.codecs.Push(exchange->step).codec();
  const ByteSpan payload = exchange->push.payload.span();
  DeviceSource step = SourceOf(key, *memory, *exchange);
  absl::Status status;
  // As in UndoPush: where the callers have their tensors back, the gradient is gone, and the
  // payload is owed instead.
  if (!exchange->given_back) {
    step.options.decay = UndoDecay(step.options.decay);
    status = exchange->device->Undo(codec, payload, step);
  } else if (key.link.codecs.push_feedback.on) {
    status = exchange->device->Owe(codec, payload, key.entry.elements, step.residual);
  }
  // Nothing has changed, and the push must stay marked as one that the host still has to undo.
  if (absl::IsResourceExhausted(status)) return status;
  exchange->uses_memory = false;
  if (!exchange->given_back) memory->previous_learning_rate = exchange->replaced_learning_rate;
  return status;
}

absl::Status BringHome(LinkMemory* memory) {
  if (memory->device == nullptr) return absl::OkStatus();
  const auto copy = [memory](const DeviceMemory& from, std::vector<float>* to) {
    if (from.get() == nullptr) return absl::OkStatus();
    to->resize(memory->elements);
    return memory->device->CopyToHost(from.get(), std::as_writable_bytes(std::span(*to)));
  };
  BDN_RETURN_IF_ERROR(copy(memory->device_residual, &memory->residual));
  BDN_RETURN_IF_ERROR(copy(memory->device_momentum, &memory->momentum));
  memory->device_residual = DeviceMemory();
  memory->device_momentum = DeviceMemory();
  // Last: after a failed copy the device still holds both.
  memory->device = nullptr;
  return absl::OkStatus();
}

absl::Status StageOnHost(Exchange* exchange) {
  MutableView& data = exchange->segments[0].data;
  exchange->staging.resize(data.n * DTypeSize(data.dtype));
  if (exchange->segments[0].present) {
    BDN_RETURN_IF_ERROR(exchange->device->CopyToHost(data.data, exchange->staging));
  }
  // The stages then see a tensor of the host; `device_data` keeps the address for DeliverStaged.
  exchange->device_data = std::exchange(data.data, exchange->staging.data());
  return absl::OkStatus();
}

absl::Status DeliverStaged(Exchange* exchange) {
  const ExchangeSegment& segment = exchange->segments[0];
  if (segment.data.data == nullptr || segment.absent_everywhere) return absl::OkStatus();
  return exchange->device->CopyToDevice(exchange->staging, exchange->device_data);
}

}  // namespace bdn
