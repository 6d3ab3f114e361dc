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
inline constexpr uint16_t kWireVersion = 2;
inline constexpr size_t kHeaderBytes = 96;
// Nobody sends more.
inline constexpr uint64_t kMaxPayloadBytes = uint64_t{1} << 30;

enum class FrameType : uint8_t {
  kHello = 1,    // opens a connection; payload: Hello
  kPush = 2,     // a worker's contribution to (key, step); subscribes to the reply
  kReply = 3,    // the result of (key, step); also acknowledges init, then without payload
  kProbe = 4,    // asks for the state of (key, step); header only
  kInit = 5,     // sets a broadcast key's value or a StatePart; payload: raw bytes or counters
  kFetch = 6,    // asks for a broadcast key's value or for a StatePart; payload: none, or a digest
  kValue = 7,    // answers fetch; payload: as init, or none where the digest is its
  kError = 8,    // answers any of the above; payload: ErrorBody
  kWaiting = 9,  // answers probe, a repeated push or a fetch that is early; payload: missing ranks
  // Between the transports of the two ends, which hand it to nobody else. The payload begins with a
  // u32 that names the frame's sub-type, and with that the transport whose frame it is.
  kTransport = 10,
};

// What a server holds of one segment of a dense key, and an init, fetch or value is about.
enum class StatePart : uint8_t {
  kNone = 0,      // the frame is about no part: it belongs to a round or to a broadcast
  kWeights = 1,   // f32, of rules that hold them
  kReplica = 2,   // f32: what delta replies have told the workers so far
  kResidual = 3,  // f32: of the replies' error feedback
  kCounters = 4,  // StateCounters, 16 bytes
  kMoment0 = 5,   // f32: the rule's first moment
  kMoment1 = 6,
  kRule = 7,  // the update rule in force, as text: of rules that hold weights and may be set
};
inline constexpr StatePart kLastStatePart = StatePart::kRule;
// The longest text of a rule.
inline constexpr size_t kMaxRuleBytes = 256;

// Bits of FrameHeader::flags. Unknown bits are refused.
enum FrameFlag : uint8_t {
  kFlagAbsent = 1 << 0,     // no gradient: header only
  kFlagNonFinite = 1 << 1,  // the gradient (or the sum) held NaN or infinity: header only
  // Push that is absent, and its probe: a reply without its payload will do. Reply: the payload was
  // left out for that.
  kFlagUnwanted = 1 << 2,
  // From the next step on the key goes uncompressed both ways: asked for by a push, decided by a reply.
  // Beside any other flag, and beside a payload.
  kFlagUncompressed = 1 << 3,
  // Value: it is what the fetch has the digest of, and was left out for that.
  kFlagSame = 1 << 4,
};
// A fetch that has a payload says what the asker holds already: its SHA-256.
inline constexpr size_t kDigestBytes = 32;
inline constexpr uint8_t kKnownFlags =
    kFlagAbsent | kFlagNonFinite | kFlagUnwanted | kFlagUncompressed | kFlagSame;
// Whether a push or reply with these flags has a payload.
inline constexpr bool HasPayload(uint8_t flags) { return (flags & ~kFlagUncompressed) == 0; }

// Every field means one thing, and is 0 on the types of frame that have no use for it.
// common/wire/headers.h fills them in.
struct FrameHeader {
  FrameType type = FrameType::kHello;
  uint8_t codec = 0;  // push, reply: CodecId of the payload
  uint8_t flags = 0;
  StatePart part = StatePart::kNone;  // init, fetch, value of a dense key's state
  NodeId sender = 0;
  Key key;
  Step step = 0;
  // Reply, value: the step that left the weights that the payload builds on, or that it is.
  Step base_step = 0;
  uint64_t num_elements = 0;
  uint64_t element_offset = 0;  // where there is a part: where its segment begins in the key
  Epoch epoch = 0;
  uint32_t catalogue_version = 0;
  float weight = 1.0f;  // push: the contribution's; reply: reserved, 0
  float learning_rate = 0.0f;
  uint32_t payload_bytes = 0;
  uint32_t payload_crc = 0;  // Crc32c of the payload; 0 for an empty one
  // Push: 1 + how many steps the pusher's program had ended; 0: not known. Those of one round agree
  // (common/wire/program_steps.h).
  uint32_t program_steps = 0;
  int32_t priority = 0;  // push: higher goes first, of what waits at its server
  // Tells a worker's inits and fetches of one key's state apart; counts from 1, and every answer
  // repeats it. 0 where the step does that: rounds and broadcasts.
  uint32_t request = 0;

  bool operator==(const FrameHeader&) const = default;
};

// A whole frame, in memory. Copies share the payload.
struct Frame {
  FrameHeader header;
  Buffer payload;
  // It crossed no network: its checksum need not be there, and is not looked at.
  bool is_of_host = false;
  // The payload is memory of the sender, who may change it while it is read: what is read twice may
  // differ. Own() makes it a copy that does not.
  bool is_lent = false;
};

const char* FrameTypeName(FrameType type);
const char* StatePartName(StatePart part);
// "push key=7.0 step=12 from node 3": what errors and logs call a frame.
std::string Describe(const FrameHeader& header);

// The 96 bytes, with the header's own CRC.
std::array<std::byte, kHeaderBytes> EncodeHeader(const FrameHeader& header);

// The most that a frame of this type carries. Who connects may send a hello before anything is known
// of him, so it is small.
uint64_t MaxPayloadBytesOf(FrameType type);

// Checks everything a header can say about itself: length, magic, version, header length, CRC,
// type, flags, fields that only some types have, floats finite and weight >= 0,
// payload size. InvalidArgument names the field; DataLoss for a wrong CRC. `bytes` may be of any
// size.
absl::StatusOr<FrameHeader> DecodeHeader(ByteSpan bytes);

// Fills payload_bytes from `payload`, and payload_crc unless it crosses no network.
Frame MakeFrame(FrameHeader header, Buffer payload, bool with_checksum = true);
// Fills payload_crc of a frame that was made without: it crosses a network after all.
void AddChecksum(Frame* frame);
// Replaces a payload that is lent by a copy of it.
void Own(Frame* frame);
// DataLoss when the payload's size or, unless it is of the same host, its CRC is not the header's.
absl::Status CheckPayload(const Frame& frame);

}  // namespace bdn

#endif  // BANDONEON_COMMON_WIRE_FRAME_H_
