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

// The payloads of frames that carry no tensor: hello, error, waiting. proto/wire_format.md is the
// norm.

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

}  // namespace bdn

#endif  // BANDONEON_COMMON_WIRE_MESSAGE_H_
