#ifndef BANDONEON_COMMON_WIRE_HEADERS_H_
#define BANDONEON_COMMON_WIRE_HEADERS_H_

#include <cstdint>
#include <optional>

#include "common/base/ids.h"
#include "common/wire/frame.h"

// The headers of requests, of the probes that ask after them, and of their answers. Only this file
// knows which fields each of them has (proto/wire_format.md, sections 4, 7 and 8). Codec, flags,
// weight, learning rate and base step are left to the maker of the payload.

namespace bdn {

// The facts about its sender that every frame carries. They are set when the frame leaves: a
// request that is sent again carries the epoch of that moment.
struct Stamp {
  NodeId sender = 0;
  Epoch epoch = 0;
  uint32_t catalogue_version = 0;
};
void StampHeader(const Stamp& stamp, FrameHeader* header);

// Makes the header that opens a connection, and the one that answers it.
FrameHeader HelloHeader(NodeId sender);
// Makes the header of a contribution to one step of a dense key of so many elements.
FrameHeader PushHeader(Key key, Step step, uint64_t num_elements);
// Makes the header of the root's init, or of another worker's fetch, of a broadcast key's value.
FrameHeader BroadcastHeader(FrameType type, Key key, Step step, uint64_t num_elements);

// One segment of a dense key, and a part of the state that a server holds of it.
struct StateSegment {
  StatePart part = StatePart::kNone;
  Key key;
  uint64_t num_elements = 0;    // of the whole key
  uint64_t element_offset = 0;  // the position in the key at which the segment begins
};
// Makes the header of an init that sets the part as of `step`, or of a fetch by a worker whose last
// step is `step`.
FrameHeader StateHeader(FrameType type, const StateSegment& segment, Step step, uint32_t request);

// Returns the header that asks after a request whose answer is late, without its payload: a probe
// after a push or a broadcast's init, the same fetch again after a fetch. Nothing asks after the
// init of a state part or a fetch of rows or records, because a server answers those at once, or
// after a report, which is short: they are sent again whole.
std::optional<FrameHeader> ProbeFor(const FrameHeader& request);

// Makes the header of an answer. It repeats what tells its request from others: key, step, request
// number and number of elements; a value repeats also the part and the segment.
FrameHeader AnswerTo(const FrameHeader& request, FrameType type);

}  // namespace bdn

#endif  // BANDONEON_COMMON_WIRE_HEADERS_H_
