#ifndef BANDONEON_COMMON_WIRE_MESSAGE_H_
#define BANDONEON_COMMON_WIRE_MESSAGE_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/buffer.h"
#include "common/base/bytes.h"
#include "common/base/ids.h"
#include "common/wire/frame.h"

// The payloads of frames that carry no tensor: hello, error, waiting, report, rebuild.
// proto/wire_format.md is the norm.

namespace bdn {

// The payload of the first frame on every connection.
struct Hello {
  std::string job_id;  // at most 255 bytes
  NodeId node = 0;     // not 0 on the wire
  Role role = Role::kWorker;
  uint32_t incarnation = 0;   // reserved, 0
  uint64_t capabilities = 0;  // reserved, 0
  std::string token;          // at most 255 bytes: the secret that JoinReply gave

  bool operator==(const Hello&) const = default;
};

// Encodes a hello. Of a string over 255 bytes 256 are sent, so that the far end refuses it and
// names the field.
Buffer EncodeHello(const Hello& hello);
// Decodes a hello. InvalidArgument names the field.
absl::StatusOr<Hello> DecodeHello(ByteSpan bytes);

// Encodes an error: code and message (cut at 4 KiB). REQUIRES: !status.ok().
Buffer EncodeError(const absl::Status& status);
// Returns the status that was sent, or InvalidArgument about the payload itself; never OK.
absl::Status DecodeError(ByteSpan bytes);

// Encode and decode the ranks whose contribution a round lacks, rising. A worker that finds its own
// among them sends the same bytes again.
Buffer EncodeRanks(const std::vector<Rank>& ranks);
absl::StatusOr<std::vector<Rank>> DecodeRanks(ByteSpan bytes);

// Encodes float32 values, one after the other.
Buffer EncodeFloats(std::span<const float> values);
// Decodes them. REQUIRES: bytes.size() == values.size_bytes().
void DecodeFloats(ByteSpan bytes, std::span<float> values);

// The counters that a server keeps of one segment.
struct StateCounters {
  uint64_t updates = 0;  // updates that the rule has made
  // The learning rate of the step that left the replies' residual.
  float previous_learning_rate = 0;

  bool operator==(const StateCounters&) const = default;
};
Buffer EncodeCounters(const StateCounters& counters);
// Decodes them. InvalidArgument: not 16 bytes, more updates than kMaxStep, a rate that is not
// finite, or a reserved field that is not zero.
absl::StatusOr<StateCounters> DecodeCounters(ByteSpan bytes);

// The step at which a key stands at its server.
struct KeyPosition {
  Step step = 0;  // dense: the last step that is over; broadcast: that of the value in force
  bool is_uncompressed = false;  // the key goes uncompressed from the next step on

  bool operator==(const KeyPosition&) const = default;
};
Buffer EncodePosition(const KeyPosition& position);
// Decodes a position. InvalidArgument: not 16 bytes, a step over kMaxStep, or unknown flags.
absl::StatusOr<KeyPosition> DecodePosition(ByteSpan bytes);

// A number of an init that a worker has sent, and the last step of its own before it.
struct LoggedInit {
  Step after = 0;
  uint32_t request = 0;

  bool operator==(const LoggedInit&) const = default;
};
// The most inits that a worker keeps for a server that may be lost.
inline constexpr size_t kMostLoggedInits = 256;

// The facts that a worker tells the new server of a key, whose former server was lost.
struct KeyReport {
  // Dense: the last step whose reply the worker had. Broadcast: the last step whose value it has.
  Step done = 0;
  // Dense: the worker has all of its pushes that were answered after this step, and all of them
  // belong to rounds of those workers that are still here.
  Step complete_from = 0;
  Step open = 0;               // the step of its request that waits for an answer; 0: none
  Step uncompressed_from = 0;  // the step from which on the key goes uncompressed; 0: not known
  Step snapshots[2] = {0, 0};  // 1 + the steps as of which it holds a snapshot; 0: none
  // 1 + the step of its newest snapshot, also of one that is no start because a worker that is lost
  // since may have set the state after it; 0: none.
  Step newest_snapshot = 0;
  // Broadcast: the step of the value that this worker has set and that some worker may lack; 0:
  // none.
  Step keeps_value = 0;
  bool is_root = false;     // broadcast: the open request sets the value
  bool is_broken = false;   // the last step ended with an error, so that it cannot be made again
  bool is_retired = false;  // the worker is done with the key, and has forgotten it
  // Dense: a worker that is lost since may have set the state, so the beginning is no start.
  bool needs_snapshot = false;
  bool is_redone = false;         // dense: it has pushed again what this epoch's order asked for
  bool has_reply = false;         // dense: it keeps the reply of its last step, and can give it
  std::vector<LoggedInit> inits;  // dense, rising: those that no snapshot is known to cover

  bool operator==(const KeyReport&) const = default;
};
Buffer EncodeReport(const KeyReport& report);
// Decodes a report. InvalidArgument names the field.
absl::StatusOr<KeyReport> DecodeReport(ByteSpan bytes);

// A server's answer to a report.
struct RebuildOrder {
  enum class What : uint8_t {
    kGo = 0,   // the key is as it was: requests may go on
    kSet = 1,  // set the key from the snapshot of step `start`; of a broadcast, set its value again
    kRedo = 2,  // push again all steps after `start` up to `target`, and repeat the inits
    kGive = 3,  // give the reply of step `target`, from which the key is estimated
  };
  What what = What::kGo;
  Step start = 0;
  Step target = 0;

  bool operator==(const RebuildOrder&) const = default;
};
Buffer EncodeOrder(const RebuildOrder& order);
absl::StatusOr<RebuildOrder> DecodeOrder(ByteSpan bytes);

// The last reply of a worker, from which a server estimates a key that cannot be made again. The
// payload of an init of StatePart::kReply, as of the target step. Views of its payload's bytes.
struct GivenReply {
  Step step = 0;          // of the last reply; 0: it has none
  Step payload_step = 0;  // of the last reply with a payload; 0: it has none
  Step base_step = 0;     // of that reply
  uint8_t flags = 0;      // of the last reply
  uint8_t codec = 0;      // of the last reply with a payload
  // The worker has not what was asked for after all; nothing else is set.
  bool is_refusal = false;
  ByteSpan payload;
  ByteSpan replica;  // float32[elements] as `payload_step` left it, where replies build on one
};
// The bytes that an encoded one has at most beside its payload and replica.
inline constexpr size_t kGivenReplyRoom = 44;
Buffer EncodeGivenReply(const GivenReply& reply);
absl::StatusOr<GivenReply> DecodeGivenReply(ByteSpan bytes);

}  // namespace bdn

#endif  // BANDONEON_COMMON_WIRE_MESSAGE_H_
