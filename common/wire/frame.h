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
// This file turns headers into bytes and back; it does no I/O.

namespace bdn {

inline constexpr uint32_t kFrameMagic = 0x464E4442u;  // "BDNF" in the order of the bytes
inline constexpr uint16_t kWireVersion = 3;
inline constexpr size_t kHeaderBytes = 96;
// No process sends a longer payload.
inline constexpr uint64_t kMaxPayloadBytes = uint64_t{1} << 30;

// The type of a frame. The values are on the wire: never renumber.
enum class FrameType : uint8_t {
  kHello = 1,  // opens a connection; payload: Hello
  kPush = 2,   // a worker's contribution to (key, step); subscribes to the reply
  kReply = 3,  // the result of (key, step); also acknowledges an init, then without payload
  kProbe = 4,  // asks for the state of (key, step); header only
  kInit = 5,   // sets a broadcast key's value or a StatePart; payload: raw bytes or counters
  // Asks for a broadcast key's value or for a StatePart; payload: none, or a digest; ids of rows,
  // or where to go on with records.
  kFetch = 6,
  // Answers a fetch; payload: as of an init, or none where the fetch's digest is the value's.
  kValue = 7,
  kError = 8,  // answers any of the above; payload: ErrorBody
  // Answers a probe, a repeated push or a fetch that is early; payload: missing ranks.
  kWaiting = 9,
  // Passes between the transports of the two ends only. The payload begins with a u32 that names
  // the frame's sub-type, and thereby the transport to which the frame belongs.
  kTransport = 10,
  // A worker tells the new server of a key what it still has of it; payload: KeyReport.
  kReport = 11,
  kRebuild = 12,  // answers a report; payload: RebuildOrder
};

// One part of the state that a server holds of one segment of a dense key; an init, fetch or value
// is about one. The values are on the wire: never renumber.
enum class StatePart : uint8_t {
  kNone = 0,      // the frame is about no part: it belongs to a round or to a broadcast
  kWeights = 1,   // f32, of rules that hold weights
  kReplica = 2,   // f32: the weights as delta replies have told them to the workers so far
  kResidual = 3,  // f32: the residual of the replies' error feedback
  kCounters = 4,  // StateCounters, 16 bytes
  kMoment0 = 5,   // f32: the rule's first moment
  kMoment1 = 6,
  kRule = 7,  // the update rule in force, as text; of rules that hold weights and may be set
  // All that a server holds of the key between two rounds, as one snapshot (server/key_snapshot.h).
  kSnapshot = 8,
  kReply = 9,      // the last reply of a worker (GivenReply), from which the key is estimated
  kPosition = 10,  // the step at which a key stands (KeyPosition), for a worker that joins later
  kRows = 11,      // the values of rows of a key of rows, by id (common/wire/row_block.h)
  // All that a server holds of the rows of one table in a key of rows, piece by piece.
  kRecords = 12,
};
inline constexpr StatePart kLastStatePart = StatePart::kRecords;
// The most bytes of a rule's text.
inline constexpr size_t kMaxRuleBytes = 256;

// A bit of FrameHeader::flags. Unknown bits are refused.
enum FrameFlag : uint8_t {
  kFlagAbsent = 1 << 0,     // no gradient: header only
  kFlagNonFinite = 1 << 1,  // the gradient (or the sum) held NaN or infinity: header only
  // On a push that is absent, and on its probe: a reply without its payload will do. On a reply:
  // the payload was left out for that reason. On a fetch of a broadcast's value: a value without
  // its payload will do, as if the fetch had its digest.
  kFlagUnwanted = 1 << 2,
  // From the next step on the key goes uncompressed both ways: a push asks for it, a reply decides
  // it. May stand beside any other flag, and beside a payload.
  kFlagUncompressed = 1 << 3,
  // On a value: the fetch has the digest of it, or does without it, so it was left out.
  kFlagSame = 1 << 4,
};
// The bytes of a fetch's payload, if it has one: the SHA-256 of the value that the asker already
// holds.
inline constexpr size_t kDigestBytes = 32;
// The bytes of the payload of a fetch of records.
inline constexpr size_t kRecordsAskBytes = 24;
inline constexpr uint8_t kKnownFlags =
    kFlagAbsent | kFlagNonFinite | kFlagUnwanted | kFlagUncompressed | kFlagSame;
// The most bytes of the payload of a report, or of the answer to it.
inline constexpr uint64_t kMaxReportBytes = 4096;
// Returns whether a push or reply with these flags has a payload.
inline constexpr bool HasPayload(uint8_t flags) { return (flags & ~kFlagUncompressed) == 0; }

// The fields of a frame's header. Each means one thing, and is 0 on the types of frame that have no
// use for it. The functions of common/wire/headers.h fill them in.
struct FrameHeader {
  FrameType type = FrameType::kHello;
  uint8_t codec = 0;  // push, reply: CodecId of the payload
  uint8_t flags = 0;
  StatePart part = StatePart::kNone;  // init, fetch, value of a dense key's state
  NodeId sender = 0;
  Key key;
  Step step = 0;
  // Reply, value: the step that left the weights on which the payload builds, or which it is.
  Step base_step = 0;
  uint64_t num_elements = 0;
  // Where there is a part: the position in the key at which its segment begins.
  uint64_t element_offset = 0;
  // Push: the step as of which its sender holds a snapshot of the server's state of the key. Reply
  // of a round: the latest such step that a push of the round told. 0: none.
  Step saved_step = 0;
  Epoch epoch = 0;
  uint32_t catalogue_version = 0;
  float weight = 1.0f;  // push: the weight of the contribution; reply: reserved, 0
  float learning_rate = 0.0f;
  uint32_t payload_bytes = 0;
  uint32_t payload_crc = 0;  // Crc32c of the payload; 0 for an empty one
  // Push: 1 + the number of steps that the pusher's program had ended; 0: not known. All pushes of
  // one round agree (common/wire/program_steps.h).
  uint32_t program_steps = 0;
  int32_t priority = 0;  // push: of those that wait at a server, the highest goes first
  // Tells a worker's inits and fetches of one key's state apart; counts from 1, and every answer
  // repeats it. 0 on rounds and broadcasts, which the step tells apart.
  uint32_t request = 0;

  bool operator==(const FrameHeader&) const = default;
};

// A whole frame, in RAM. Copies share the payload.
struct Frame {
  FrameHeader header;
  Buffer payload;
  // The frame crossed no network: its checksum may be missing, and is not checked.
  bool is_of_host = false;
  // The payload is memory of the sender, which may change it while it is read, so that reading it
  // twice may give different bytes. Own() replaces it by a copy that does not change.
  bool is_lent = false;
};

const char* FrameTypeName(FrameType type);
const char* StatePartName(StatePart part);
// Returns "push key=7.0 step=12 from node 3", by which errors and logs name a frame.
std::string Describe(const FrameHeader& header);

// Returns the 96 bytes, with the header's own CRC.
std::array<std::byte, kHeaderBytes> EncodeHeader(const FrameHeader& header);

// Returns the most payload bytes of a frame of this type. A hello and a frame of the transports'
// own are small, because a peer may send them before anything is known of it. A fetch of rows may
// be as long as a push.
uint64_t MaxPayloadBytesOf(FrameType type);

// Checks everything that a header says about itself: length, magic, version, header length, CRC,
// type, flags, fields that only some types have, finite floats and weight >= 0, payload size.
// InvalidArgument names the field; a wrong CRC is DataLoss. `bytes` may be of any size.
absl::StatusOr<FrameHeader> DecodeHeader(ByteSpan bytes);

// Makes a frame: fills in payload_bytes from `payload`, and payload_crc unless the frame crosses no
// network.
Frame MakeFrame(FrameHeader header, Buffer payload, bool with_checksum = true);
// Fills in payload_crc of a frame that was made without a checksum, and is to cross a network after
// all.
void AddChecksum(Frame* frame);
// Replaces a payload that is lent by a copy of it.
void Own(Frame* frame);
// Returns DataLoss when the payload's size is not the header's, or its CRC is not (which is not
// checked where is_of_host).
absl::Status CheckPayload(const Frame& frame);

}  // namespace bdn

#endif  // BANDONEON_COMMON_WIRE_FRAME_H_
