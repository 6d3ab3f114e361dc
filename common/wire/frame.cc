#include "common/wire/frame.h"

#include <cmath>
#include <utility>

#include "common/base/crc32c.h"
#include "common/base/endian.h"
#include "common/base/status.h"

namespace bdn {
namespace {

// The offset at which each field of the header starts; proto/wire_format.md has the table.
enum Offset : size_t {
  kMagicAt = 0,
  kVersionAt = 4,
  kHeaderBytesAt = 6,
  kTypeAt = 8,
  kCodecAt = 9,
  kFlagsAt = 10,
  kPartAt = 11,
  kSenderAt = 12,
  kKeyAt = 16,
  kStepAt = 24,
  kBaseStepAt = 32,
  kNumElementsAt = 40,
  kElementOffsetAt = 48,  // of a push or reply: saved_step
  kEpochAt = 56,
  kCatalogueVersionAt = 60,
  kWeightAt = 64,
  kLearningRateAt = 68,
  kPayloadBytesAt = 72,
  kPayloadCrcAt = 76,
  kProgramStepsAt = 80,
  kPriorityAt = 84,
  kRequestAt = 88,
  kHeaderCrcAt = 92,
};

// The header's CRC covers every byte before it, so it is last.
uint32_t HeaderCrc(ByteSpan bytes) { return Crc32c(bytes.first(kHeaderCrcAt)); }

bool IsOfRound(FrameType type) { return type == FrameType::kPush || type == FrameType::kReply; }

bool IsFrameType(uint8_t value) {
  return value >= static_cast<uint8_t>(FrameType::kHello) &&
         value <= static_cast<uint8_t>(FrameType::kRebuild);
}

// Checks whether these bytes are a header of this version at all. The CRC comes last: a header of
// another version gets an error that says so.
absl::Status CheckEnvelope(ByteSpan bytes) {
  if (bytes.size() != kHeaderBytes) {
    return InvalidArgument("frame header: %d bytes, expected %d", bytes.size(), kHeaderBytes);
  }
  if (const auto magic = LoadLittle<uint32_t>(bytes, kMagicAt); magic != kFrameMagic) {
    return InvalidArgument("frame header: magic 0x%08x, expected 0x%08x", magic, kFrameMagic);
  }
  if (const auto version = LoadLittle<uint16_t>(bytes, kVersionAt); version != kWireVersion) {
    return InvalidArgument("frame header: wire version %d, this process speaks %d", version,
                           kWireVersion);
  }
  if (const auto length = LoadLittle<uint16_t>(bytes, kHeaderBytesAt); length != kHeaderBytes) {
    return InvalidArgument("frame header: header_bytes %d, expected %d", length, kHeaderBytes);
  }
  const auto crc = LoadLittle<uint32_t>(bytes, kHeaderCrcAt);
  if (const uint32_t computed = HeaderCrc(bytes); computed != crc) {
    return DataLoss("frame header: header_crc 0x%08x, computed 0x%08x", crc, computed);
  }
  return absl::OkStatus();
}

// Checks the fields that only some types of frame have: on all others they must be 0, so that a
// later version may give them a meaning.
absl::Status CheckOnlyOnSome(const FrameHeader& header) {
  const FrameType type = header.type;
  const bool is_of_round = IsOfRound(type);
  const bool is_of_state =
      type == FrameType::kInit || type == FrameType::kFetch || type == FrameType::kValue;
  const bool has_base = type == FrameType::kReply || type == FrameType::kValue;
  const bool is_of_rebuild = type == FrameType::kReport || type == FrameType::kRebuild;
  const bool is_answer_to_state =
      has_base || is_of_rebuild || type == FrameType::kError || type == FrameType::kWaiting;
  struct Field {
    const char* name;
    uint64_t value;
    bool may_be_set;
  };
  const Field fields[] = {
      {"codec", header.codec, is_of_round},
      {"part", static_cast<uint8_t>(header.part), is_of_state},
      {"base_step", header.base_step, has_base},
      {"element_offset", header.element_offset, is_of_state},
      {"program_steps", header.program_steps, type == FrameType::kPush},
      {"request", header.request, is_of_state || is_answer_to_state},
  };
  if (header.priority != 0 && type != FrameType::kPush) {
    return InvalidArgument("frame header: priority is %d on a %s, must be 0", header.priority,
                           FrameTypeName(type));
  }
  for (const Field& field : fields) {
    if (field.value != 0 && !field.may_be_set) {
      return InvalidArgument("frame header: %s is %d on a %s, must be 0", field.name, field.value,
                             FrameTypeName(type));
    }
  }
  if (header.saved_step != 0 && header.saved_step >= header.step) {
    return InvalidArgument("frame header: saved_step is %d on a %s of step %d, must be before it",
                           header.saved_step, FrameTypeName(type), header.step);
  }
  if (header.part > kLastStatePart) {
    return InvalidArgument("frame header: unknown part %d", static_cast<uint8_t>(header.part));
  }
  return absl::OkStatus();
}

// Checks that the flags are known, fit the type, and do not contradict each other.
absl::Status CheckFlags(const FrameHeader& header) {
  if ((header.flags & ~kKnownFlags) != 0) {
    return InvalidArgument("frame header: unknown flags 0x%02x", header.flags & ~kKnownFlags);
  }
  const bool is_unwanted = (header.flags & kFlagUnwanted) != 0;
  const uint8_t others = header.flags & ~(kFlagUnwanted | kFlagUncompressed);
  const bool is_of_round = IsOfRound(header.type);
  const bool is_fetch = header.type == FrameType::kFetch && header.part == StatePart::kNone;
  const bool may_be_unwanted = is_of_round || header.type == FrameType::kProbe || is_fetch;
  // The flags of a round: absent, non-finite and uncompressed.
  const uint8_t of_round = header.flags & ~(kFlagUnwanted | kFlagSame);
  const bool is_same = (header.flags & kFlagSame) != 0;
  if (is_same && (header.type != FrameType::kValue || header.flags != kFlagSame)) {
    return InvalidArgument("frame header: flags 0x%02x on a %s: same is for values, alone",
                           header.flags, FrameTypeName(header.type));
  }
  if ((of_round != 0 && !is_of_round) || (is_unwanted && !may_be_unwanted)) {
    return InvalidArgument("frame header: flags 0x%02x on a %s", header.flags,
                           FrameTypeName(header.type));
  }
  if (others == (kFlagAbsent | kFlagNonFinite)) {
    return InvalidArgument("frame header: flags say absent and non-finite at once");
  }
  // Only a worker that has nothing to send may do without the result; on a reply the flag stands
  // instead of all others.
  const uint8_t beside = header.type == FrameType::kPush ? kFlagAbsent : 0;
  if (is_unwanted && others != beside) {
    return InvalidArgument("frame header: flags 0x%02x on a %s: unwanted goes with 0x%02x",
                           header.flags, FrameTypeName(header.type), beside);
  }
  return absl::OkStatus();
}

absl::Status CheckFloats(const FrameHeader& header) {
  if (!std::isfinite(header.weight) || header.weight < 0) {
    return InvalidArgument("frame header: weight %g, must be finite and >= 0", header.weight);
  }
  if (!std::isfinite(header.learning_rate)) {
    return InvalidArgument("frame header: learning_rate %g, must be finite", header.learning_rate);
  }
  return absl::OkStatus();
}

// Checks that a payload is there only where it may be, and is not too long.
absl::Status CheckPayloadFields(const FrameHeader& header) {
  // A peer must not make this process hold more than the type of the frame needs.
  const bool is_fetch = header.type == FrameType::kFetch;
  const bool names_rows = is_fetch && header.part == StatePart::kRows;
  const uint64_t most = names_rows ? kMaxPayloadBytes : MaxPayloadBytesOf(header.type);
  if (header.payload_bytes > most) {
    return InvalidArgument("frame header: payload_bytes %d, at most %d", header.payload_bytes,
                           most);
  }
  if (header.payload_bytes == 0) {
    if (header.payload_crc == 0) return absl::OkStatus();
    return InvalidArgument("frame header: payload_crc 0x%08x of an empty payload",
                           header.payload_crc);
  }
  const size_t of_fetch = header.part == StatePart::kRecords ? kRecordsAskBytes : kDigestBytes;
  const bool header_only = !HasPayload(header.flags) || header.type == FrameType::kProbe ||
                           (is_fetch && !names_rows && header.payload_bytes != of_fetch);
  if (header_only) {
    return InvalidArgument("frame header: payload_bytes %d on a %s with flags 0x%02x, must be 0",
                           header.payload_bytes, FrameTypeName(header.type), header.flags);
  }
  return absl::OkStatus();
}

}  // namespace

const char* FrameTypeName(FrameType type) {
  switch (type) {
    case FrameType::kHello:
      return "hello";
    case FrameType::kPush:
      return "push";
    case FrameType::kReply:
      return "reply";
    case FrameType::kProbe:
      return "probe";
    case FrameType::kInit:
      return "init";
    case FrameType::kFetch:
      return "fetch";
    case FrameType::kValue:
      return "value";
    case FrameType::kError:
      return "error";
    case FrameType::kWaiting:
      return "waiting";
    case FrameType::kTransport:
      return "transport";
    case FrameType::kReport:
      return "report";
    case FrameType::kRebuild:
      return "rebuild";
  }
  return "unknown frame";
}

uint64_t MaxPayloadBytesOf(FrameType type) {
  if (type == FrameType::kHello || type == FrameType::kTransport) return 1024;
  if (type == FrameType::kError) return 8 + 4096;
  if (type == FrameType::kFetch) return kDigestBytes;
  if (type == FrameType::kReport || type == FrameType::kRebuild) return kMaxReportBytes;
  return kMaxPayloadBytes;
}

const char* StatePartName(StatePart part) {
  switch (part) {
    case StatePart::kNone:
      return "none";
    case StatePart::kWeights:
      return "weights";
    case StatePart::kReplica:
      return "replica";
    case StatePart::kResidual:
      return "residual";
    case StatePart::kCounters:
      return "counters";
    case StatePart::kMoment0:
      return "moment0";
    case StatePart::kMoment1:
      return "moment1";
    case StatePart::kRule:
      return "rule";
    case StatePart::kSnapshot:
      return "snapshot";
    case StatePart::kReply:
      return "reply";
    case StatePart::kPosition:
      return "position";
    case StatePart::kRows:
      return "rows";
    case StatePart::kRecords:
      return "records";
  }
  return "unknown part";
}

std::string Describe(const FrameHeader& header) {
  return absl::StrFormat("%s key=%s step=%d from node %d", FrameTypeName(header.type),
                         header.key.ToString(), header.step, header.sender);
}

std::array<std::byte, kHeaderBytes> EncodeHeader(const FrameHeader& header) {
  std::array<std::byte, kHeaderBytes> bytes{};
  const MutableByteSpan out(bytes);
  StoreLittle(out, kMagicAt, kFrameMagic);
  StoreLittle(out, kVersionAt, kWireVersion);
  StoreLittle(out, kHeaderBytesAt, static_cast<uint16_t>(kHeaderBytes));
  StoreLittle(out, kTypeAt, static_cast<uint8_t>(header.type));
  StoreLittle(out, kCodecAt, header.codec);
  StoreLittle(out, kFlagsAt, header.flags);
  StoreLittle(out, kPartAt, static_cast<uint8_t>(header.part));
  StoreLittle(out, kSenderAt, header.sender);
  StoreLittle(out, kKeyAt, header.key.value);
  StoreLittle(out, kStepAt, header.step);
  StoreLittle(out, kBaseStepAt, header.base_step);
  StoreLittle(out, kNumElementsAt, header.num_elements);
  // One place for two fields: no type has both.
  StoreLittle(out, kElementOffsetAt,
              IsOfRound(header.type) ? header.saved_step : header.element_offset);
  StoreLittle(out, kEpochAt, header.epoch);
  StoreLittle(out, kCatalogueVersionAt, header.catalogue_version);
  StoreLittle(out, kWeightAt, header.weight);
  StoreLittle(out, kLearningRateAt, header.learning_rate);
  StoreLittle(out, kPayloadBytesAt, header.payload_bytes);
  StoreLittle(out, kPayloadCrcAt, header.payload_crc);
  StoreLittle(out, kProgramStepsAt, header.program_steps);
  StoreLittle(out, kPriorityAt, header.priority);
  StoreLittle(out, kRequestAt, header.request);
  StoreLittle(out, kHeaderCrcAt, HeaderCrc(out));
  return bytes;
}

absl::StatusOr<FrameHeader> DecodeHeader(ByteSpan bytes) {
  BDN_RETURN_IF_ERROR(CheckEnvelope(bytes));
  const auto type = LoadLittle<uint8_t>(bytes, kTypeAt);
  if (!IsFrameType(type)) return InvalidArgument("frame header: unknown type %d", type);

  FrameHeader header;
  header.type = static_cast<FrameType>(type);
  header.codec = LoadLittle<uint8_t>(bytes, kCodecAt);
  header.flags = LoadLittle<uint8_t>(bytes, kFlagsAt);
  header.part = static_cast<StatePart>(LoadLittle<uint8_t>(bytes, kPartAt));
  header.sender = LoadLittle<NodeId>(bytes, kSenderAt);
  header.key = Key{LoadLittle<uint64_t>(bytes, kKeyAt)};
  header.step = LoadLittle<Step>(bytes, kStepAt);
  header.base_step = LoadLittle<Step>(bytes, kBaseStepAt);
  header.num_elements = LoadLittle<uint64_t>(bytes, kNumElementsAt);
  (IsOfRound(header.type) ? header.saved_step : header.element_offset) =
      LoadLittle<uint64_t>(bytes, kElementOffsetAt);
  header.epoch = LoadLittle<Epoch>(bytes, kEpochAt);
  header.catalogue_version = LoadLittle<uint32_t>(bytes, kCatalogueVersionAt);
  header.weight = LoadLittle<float>(bytes, kWeightAt);
  header.learning_rate = LoadLittle<float>(bytes, kLearningRateAt);
  header.payload_bytes = LoadLittle<uint32_t>(bytes, kPayloadBytesAt);
  header.payload_crc = LoadLittle<uint32_t>(bytes, kPayloadCrcAt);
  header.program_steps = LoadLittle<uint32_t>(bytes, kProgramStepsAt);
  header.priority = LoadLittle<int32_t>(bytes, kPriorityAt);
  header.request = LoadLittle<uint32_t>(bytes, kRequestAt);

  BDN_RETURN_IF_ERROR(CheckFlags(header));
  BDN_RETURN_IF_ERROR(CheckOnlyOnSome(header));
  BDN_RETURN_IF_ERROR(CheckFloats(header));
  BDN_RETURN_IF_ERROR(CheckPayloadFields(header));
  return header;
}

Frame MakeFrame(FrameHeader header, Buffer payload, bool with_checksum) {
  header.payload_bytes = static_cast<uint32_t>(payload.size());
  // The CRC of nothing is 0, as the header of an empty payload wants it.
  header.payload_crc = with_checksum ? Crc32c(payload.span()) : 0;
  return Frame{header, std::move(payload)};
}

void AddChecksum(Frame* frame) {
  // A computed checksum may be 0, too: then it is computed again, and is 0 again.
  if (frame->payload.empty() || frame->header.payload_crc != 0) return;
  frame->header.payload_crc = Crc32c(frame->payload.span());
}

void Own(Frame* frame) {
  if (!frame->is_lent) return;
  frame->payload = Buffer::CopyOf(frame->payload.span());
  frame->is_lent = false;
}

absl::Status CheckPayload(const Frame& frame) {
  if (frame.payload.size() != frame.header.payload_bytes) {
    return DataLoss("%s: payload of %d bytes, the header says %d", Describe(frame.header),
                    frame.payload.size(), frame.header.payload_bytes);
  }
  // Bytes that crossed no network are not checked: they cannot have changed on the way.
  if (frame.is_of_host) return absl::OkStatus();
  if (const uint32_t crc = Crc32c(frame.payload.span()); crc != frame.header.payload_crc) {
    return DataLoss("%s: payload crc 0x%08x, the header says 0x%08x", Describe(frame.header), crc,
                    frame.header.payload_crc);
  }
  return absl::OkStatus();
}

}  // namespace bdn
