#ifndef BANDONEON_COMMON_WIRE_FRAME_H_
#define BANDONEON_COMMON_WIRE_FRAME_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/buffer.h"
#include "common/base/bytes.h"
#include "common/base/ids.h"

// The data plane's frame: a header of 96 bytes, then the payload. proto/wire_format.md is the norm.
// Here bytes become a header and back; there is no I/O.

namespace bdn {

inline constexpr uint32_t kFrameMagic = 0x464E4442u;  // "BDNF" in the order of the bytes
inline constexpr uint16_t kWireVersion = 1;
inline constexpr size_t kHeaderBytes = 96;
// Nobody sends more; a receiver may allow less (hello's largest_frame).
inline constexpr uint64_t kMaxPayloadBytes = uint64_t{1} << 30;

enum class FrameType : uint8_t {
  kHello = 1,    // opens a connection; payload: Hello
  kPush = 2,     // a worker's contribution to (key, step); subscribes to the reply
  kReply = 3,    // the result of (key, step); also acknowledges init, then without payload
  kProbe = 4,    // asks for the state of (key, step); header only
  kInit = 5,     // sets a broadcast key's value, or a StatePart; payload: raw bytes or counters
  kFetch = 6,    // asks for a broadcast key's value, or for a StatePart; header only
  kValue = 7,    // answers fetch; payload: as init
  kError = 8,    // answers any of the above; payload: ErrorBody
  kWaiting = 9,  // answers probe, a repeated push or a fetch that is early; payload: missing ranks
};

// What an init, fetch or value of a dense key is about (FrameHeader::codec): what the server holds
// of one segment.
enum class StatePart : uint8_t {
  kWeights = 0,   // f32, of rules that hold them
  kReplica = 1,   // f32: what delta replies have told the workers so far
  kResidual = 2,  // f32: of the replies' error feedback
  kCounters = 3,  // StateCounters, 16 bytes
  kMoment0 = 4,   // f32: the rule's first moment
  kMoment1 = 5,
};
inline constexpr uint8_t kLastStatePart = static_cast<uint8_t>(StatePart::kMoment1);

// Bits of FrameHeader::flags. Unknown bits are refused.
enum FrameFlag : uint16_t {
  kFlagAbsent = 1 << 0,     // no gradient: header only
  kFlagNonFinite = 1 << 1,  // the gradient (or the sum) held NaN or infinity: header only
};
inline constexpr uint16_t kKnownFlags = kFlagAbsent | kFlagNonFinite;

struct FrameHeader {
  FrameType type = FrameType::kHello;
  uint8_t codec = 0;  // CodecId of the payload, or a StatePart; else 0
  uint16_t flags = 0;
  NodeId sender = 0;
  Key key;
  Step step = 0;
  // Reply to a push: the step that left the weights which it changes. Dense init: counts this
  // worker's of the key, from 1; its reply or error repeats that. Dense value: the step that left
  // the weights as they are, or without weights the last closed. Else 0.
  Step base_step = 0;
  uint64_t num_elements = 0;
  uint64_t element_offset = 0;  // init, fetch, value of a dense key: where the segment begins
  Epoch epoch = 0;
  uint32_t catalogue_version = 0;
  float weight = 1.0f;  // push: the contribution's; reply: number of contributors
  float learning_rate = 0.0f;
  uint32_t payload_bytes = 0;
  uint32_t payload_crc = 0;  // Crc32c of the payload; 0 for an empty one

  bool operator==(const FrameHeader&) const = default;
};

// A whole frame, in memory. Copies share the payload.
struct Frame {
  FrameHeader header;
  Buffer payload;
};

const char* FrameTypeName(FrameType type);
// "push key=7.0 step=12 from node 3": what errors and logs call a frame.
std::string Describe(const FrameHeader& header);

// The 96 bytes, with the header's own CRC.
std::array<std::byte, kHeaderBytes> EncodeHeader(const FrameHeader& header);

// Checks everything a header can say about itself: length, magic, version, header length, CRC,
// type, flags, reserved fields, floats finite and weight >= 0, payload size. InvalidArgument names
// the field; DataLoss for a wrong CRC. `bytes` may be of any size.
absl::StatusOr<FrameHeader> DecodeHeader(ByteSpan bytes);

// Fills payload_bytes and payload_crc from `payload`.
Frame MakeFrame(FrameHeader header, Buffer payload);
// DataLoss when the payload's CRC or size is not the header's.
absl::Status CheckPayload(const Frame& frame);

}  // namespace bdn

#endif  // BANDONEON_COMMON_WIRE_FRAME_H_
