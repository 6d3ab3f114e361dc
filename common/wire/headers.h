#ifndef BANDONEON_COMMON_WIRE_HEADERS_H_
#define BANDONEON_COMMON_WIRE_HEADERS_H_

#include <cstdint>
#include <optional>

#include "common/base/ids.h"
#include "common/wire/frame.h"

// The headers of requests, of the probes that ask after them, and of their answers: the one place
// that knows which fields each of them has (proto/wire_format.md, sections 4, 7 and 8). Codec,
// flags, weight, learning rate and base step are for whoever makes the payload.

namespace bdn {

// What every frame says of its sender. Set when the frame leaves: a request that is sent again
// carries the epoch of now.
struct Stamp {
  NodeId sender = 0;
  Epoch epoch = 0;
  uint32_t catalogue_version = 0;
};
void StampHeader(const Stamp& stamp, FrameHeader* header);

// Opens a connection, and answers that.
FrameHeader HelloHeader(NodeId sender);
// A contribution to one step of a dense key of so many elements.
FrameHeader PushHeader(Key key, Step step, uint64_t num_elements);
// The root's init, or another worker's fetch, of a broadcast key's value.
FrameHeader BroadcastHeader(FrameType type, Key key, Step step, uint64_t num_elements);

// A part of what a server holds of one segment of a dense key.
struct StateSegment {
  StatePart part = StatePart::kNone;
  Key key;
  uint64_t num_elements = 0;    // of the whole key
  uint64_t element_offset = 0;  // where the segment begins in it
};
// An init that sets it as of `step`, or a fetch by a worker that stands at `step`.
FrameHeader StateHeader(FrameType type, const StateSegment& segment, Step step, uint32_t request);

// What asks after a request whose answer is late, without its payload: a probe after a push or a
// broadcast's init, the same fetch again after a fetch. Nothing asks after the init of a state
// part, which a server answers at once: it is sent again whole.
std::optional<FrameHeader> ProbeFor(const FrameHeader& request);

// An answer repeats what tells its request from others: key, step, request number and number of
// elements; a value also the part and the segment.
FrameHeader AnswerTo(const FrameHeader& request, FrameType type);

}  // namespace bdn

#endif  // BANDONEON_COMMON_WIRE_HEADERS_H_
