#include "worker/host/host_messages.h"

#include "common/base/status.h"
#include "compressors/codec_spec.h"
#include "proto/host.pb.h"
#include "worker/error_fields.h"

namespace bdn {

namespace wire = bandoneon::host;

void Write(const absl::Status& status, wire::Status* message) {
  message->set_code(static_cast<uint32_t>(status.code()));
  message->set_message(std::string(status.message()));
  message->set_tensor(GetErrorField(status, "tensor"));
  message->set_step(GetErrorField(status, "step"));
  message->set_stage(GetErrorField(status, "stage"));
  message->set_waiting_for(GetErrorField(status, "waiting_for"));
}

absl::Status Read(const wire::Status& message) {
  if (message.code() == 0) return absl::OkStatus();
  const bool is_known = message.code() <= static_cast<uint32_t>(absl::StatusCode::kUnauthenticated);
  const absl::Status status(
      is_known ? static_cast<absl::StatusCode>(message.code()) : absl::StatusCode::kUnknown,
      message.message());
  return AttachFields(status, {.tensor = message.tensor(),
                               .step = message.step(),
                               .stage = message.stage(),
                               .waiting_for = message.waiting_for()});
}

void Write(const HostPlace& place, wire::Place* message) {
  message->set_segment(place.segment);
  message->set_offset(place.offset);
  message->set_bytes(place.bytes);
}

HostPlace Read(const wire::Place& message) {
  return {message.segment(), message.offset(), message.bytes()};
}

absl::StatusOr<std::shared_ptr<const Codec>> ParseHostCodec(const std::string& spec) {
  BDN_ASSIGN_OR_RETURN(const LinkCodec link, ParseCodecSpec(spec));
  if (link.error_feedback || link.delta || !link.codec->bounds_itself()) {
    return InvalidArgument(
        "setting host is '%s': inside a host gradients go by none, fp16, bf16, onebit, twobit, int8, int4 "
        "or int2, without a memory",
        spec);
  }
  return link.codec;
}

std::string EncodeSegmentToDaemon(uint32_t index, uint64_t bytes) {
  wire::ToDaemon message;
  message.mutable_segment()->set_index(index);
  message.mutable_segment()->set_bytes(bytes);
  return message.SerializeAsString();
}

std::string EncodeSegmentToProcess(uint32_t index, uint64_t bytes) {
  wire::ToProcess message;
  message.mutable_segment()->set_index(index);
  message.mutable_segment()->set_bytes(bytes);
  return message.SerializeAsString();
}

}  // namespace bdn
