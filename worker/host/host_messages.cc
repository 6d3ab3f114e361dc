#include "worker/host/host_messages.h"

#include "common/base/status.h"
#include "compressors/codec_spec.h"
#include "proto/host.pb.h"
#include "worker/error_fields.h"

namespace bdn {

namespace wire = bandoneon::host;

void Write(const absl::Status& status, wire::Status* message) {
  message->set_code(static_cast<uint32_t>(NumberOf(status)));
  message->set_message(std::string(status.message()));
  message->set_tensor(GetErrorField(status, "tensor"));
  message->set_step(GetErrorField(status, "step"));
  message->set_stage(GetErrorField(status, "stage"));
  message->set_waiting_for(GetErrorField(status, "waiting_for"));
}

absl::Status Read(const wire::Status& message) {
  if (message.code() == 0) return absl::OkStatus();
  return AttachFields(StatusOf(message.code(), message.message()),
                      {.tensor = message.tensor(),
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

void Write(const StateCounters& counters, wire::StateCounters* message) {
  message->set_updates(counters.updates);
  message->set_previous_learning_rate(counters.previous_learning_rate);
}

StateCounters Read(const wire::StateCounters& message) {
  return {message.updates(), message.previous_learning_rate()};
}

void Write(const Presence& presence, wire::Presence* message) {
  message->set_size(static_cast<uint32_t>(presence.size));
  message->set_first_rank(presence.first_rank);
}

absl::StatusOr<Presence> Read(const wire::Presence& message, Rank rank, int joined) {
  const int64_t size = message.size();
  const int64_t first = message.first_rank();
  if (size < 1 || first < 0 || first + size > joined) {
    return InvalidArgument("%d workers from rank %d on are present, of %d in the job", size, first,
                           joined);
  }
  if (first > rank) {
    return InvalidArgument("the first rank that is present is %d, and this worker's is %d", first,
                           rank);
  }
  return Presence{static_cast<int>(size), static_cast<Rank>(first)};
}

void Write(const StateCall& call, wire::StateCall* message) {
  const bool is_of_link = call.where == StateCall::Where::kThisLink;
  message->set_what(static_cast<uint32_t>(call.what));
  message->set_where(static_cast<uint32_t>(call.where));
  message->set_part(is_of_link ? static_cast<uint32_t>(call.link_part)
                               : static_cast<uint32_t>(call.server_part));
  for (const uint32_t tensor : call.subjects()) message->add_tensors(tensor);
  message->set_step(call.step);
  Write(call.counters, message->mutable_counters());
  message->set_rule(call.rule);
}

absl::StatusOr<StateCall> Read(const wire::StateCall& message) {
  if (message.what() > static_cast<uint32_t>(StateCall::What::kSyncWeights) ||
      message.where() > static_cast<uint32_t>(StateCall::Where::kServer)) {
    return InvalidArgument("a call about state of number %d at %d is none", message.what(),
                           message.where());
  }
  StateCall call{.what = static_cast<StateCall::What>(message.what()),
                 .where = static_cast<StateCall::Where>(message.where()),
                 .step = message.step(),
                 .counters = Read(message.counters()),
                 .tensors = {message.tensors().data(), static_cast<size_t>(message.tensors_size())},
                 .rule = message.rule()};
  // The only call about several tensors.
  if (call.what == StateCall::What::kSetRule) return call;
  if (message.tensors_size() != 1) {
    return InvalidArgument("a call about the state of %d tensors, not of one",
                           message.tensors_size());
  }
  call.tensor = message.tensors(0);
  if (call.where == StateCall::Where::kThisLink) {
    if (message.part() > static_cast<uint32_t>(LinkState::kLearningRate)) {
      return InvalidArgument("state %d of a link is none", message.part());
    }
    call.link_part = static_cast<LinkState>(message.part());
  } else {
    if (message.part() > static_cast<uint32_t>(StatePart::kRule)) {
      return InvalidArgument("part %d of a server's state is none", message.part());
    }
    call.server_part = static_cast<StatePart>(message.part());
  }
  return call;
}

absl::StatusOr<std::shared_ptr<const Codec>> ParseHostCodec(const std::string& spec) {
  BDN_ASSIGN_OR_RETURN(const LinkCodec link, ParseCodecSpec(spec));
  // Error feedback would need a residual in each process; and the daemon decodes memory that a
  // process may still change, which needs a codec that bounds itself.
  if (link.error_feedback || link.delta || !link.codec->bounds_itself()) {
    return InvalidArgument(
        "setting host is '%s': inside a host gradients go by none, fp16, bf16, onebit, twobit, "
        "int8, int4 or int2, without a memory",
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
