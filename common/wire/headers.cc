#include "common/wire/headers.h"

namespace bdn {
namespace {

FrameHeader About(FrameType type, Key key, Step step, uint64_t num_elements) {
  FrameHeader header;
  header.type = type;
  header.key = key;
  header.step = step;
  header.num_elements = num_elements;
  return header;
}

}  // namespace

void StampHeader(const Stamp& stamp, FrameHeader* header) {
  header->sender = stamp.sender;
  header->epoch = stamp.epoch;
  header->catalogue_version = stamp.catalogue_version;
}

FrameHeader HelloHeader(NodeId sender) {
  FrameHeader header;
  header.type = FrameType::kHello;
  header.sender = sender;
  return header;
}

FrameHeader PushHeader(Key key, Step step, uint64_t num_elements) {
  return About(FrameType::kPush, key, step, num_elements);
}

FrameHeader BroadcastHeader(FrameType type, Key key, Step step, uint64_t num_elements) {
  return About(type, key, step, num_elements);
}

FrameHeader StateHeader(FrameType type, const StateSegment& segment, Step step, uint32_t request) {
  FrameHeader header = About(type, segment.key, step, segment.num_elements);
  header.part = segment.part;
  header.element_offset = segment.element_offset;
  header.request = request;
  return header;
}

std::optional<FrameHeader> ProbeFor(const FrameHeader& request) {
  const bool is_fetch = request.type == FrameType::kFetch;
  const bool is_of_rows =
      is_fetch && (request.part == StatePart::kRows || request.part == StatePart::kRecords);
  if (is_fetch && !is_of_rows) {
    // A digest is not repeated: without it the answer carries the whole value, which is right in
    // any case.
    FrameHeader again = request;
    again.payload_bytes = 0;
    again.payload_crc = 0;
    return again;
  }
  const bool is_of_state = request.type == FrameType::kInit && request.part != StatePart::kNone;
  if (is_of_state || is_of_rows || request.type == FrameType::kReport) return std::nullopt;
  FrameHeader probe = About(FrameType::kProbe, request.key, request.step, request.num_elements);
  probe.flags = request.flags & kFlagUnwanted;
  return probe;
}

FrameHeader AnswerTo(const FrameHeader& request, FrameType type) {
  FrameHeader header = About(type, request.key, request.step, request.num_elements);
  header.request = request.request;
  if (type == FrameType::kReply) header.weight = 0;  // reserved
  if (type == FrameType::kValue) {
    header.part = request.part;
    header.element_offset = request.element_offset;
  }
  return header;
}

}  // namespace bdn
