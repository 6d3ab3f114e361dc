#include "worker/server_requests.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "common/base/log.h"
#include "common/base/status.h"
#include "common/certs/digest.h"
#include "common/wire/headers.h"
#include "common/wire/message.h"
#include "worker/error_fields.h"
#include "worker/long_waits.h"
#include "worker/scattered_bytes.h"

namespace bdn {
namespace {

constexpr auto kNoPayload = [](const TensorPart&) { return Buffer(); };

// A placeholder: Register gives requests their numbers, and broadcasts their steps, once it is
// certain that they are sent.
constexpr uint32_t kNumberedLater = 0;

// Returns a PartFn for one part. Keys too small to be compressed keep no residual or replica to be
// read.
auto WhereKept(StatePart part) {
  return [part](const DeclaredKey& key) -> std::optional<StatePart> {
    const bool lacks =
        (part == StatePart::kReplica && key.link.codecs.reply != ReplyKind::kDelta) ||
        (part == StatePart::kResidual && !key.link.codecs.pull_feedback.on);
    if (lacks) return std::nullopt;
    return part;
  };
}

// Returns the part that holds the weights as the workers hold them.
std::optional<StatePart> WeightsOfWorkers(const DeclaredKey& key) {
  return key.link.codecs.reply == ReplyKind::kDelta ? StatePart::kReplica : StatePart::kWeights;
}

// Values shorter than this are sooner sent than hashed.
constexpr size_t kWorthAsking = 1024;

// Returns the payload of a fetch: a digest of the bytes that its sender holds.
Buffer DigestPayload(ByteSpan held) {
  if (held.size() < kWorthAsking) return Buffer();
  return Buffer::CopyOf(DigestOf(held));
}

// Returns whether a value was left out because its asker holds it. The server's flag counts only if
// a digest was sent.
bool IsSame(const Frame& value, size_t bytes) {
  return (value.header.flags & kFlagSame) != 0 && bytes >= kWorthAsking;
}

RequestTable::Request RequestFor(const DeclaredKey& key, Frame frame, const std::string& tensor,
                                 Rank root) {
  return {.frame = std::move(frame),
          .server = key.server,
          .catalogue_version = key.catalogue_version,
          .tensor = tensor,
          .root = root};
}

}  // namespace

// ---- Asking and waiting

absl::Status ServerRequests::Register(const std::string& what,
                                      std::vector<RequestTable::Request>* requests,
                                      Caller* caller) {
  BDN_RETURN_IF_ERROR(tensors_->participation().Check());
  // First all checks, then all changes: a call about several keys is registered for all of them or
  // none.
  for (const RequestTable::Request& request : *requests) {
    const Key key = request.frame.header.key;
    const KeyExchange* const exchange = tensors_->FindKey(key);
    if (exchange == nullptr || exchange->is_retired()) {
      return NotFound("%s: the tensor was retired", what);
    }
    if (open_.contains(key) || !exchange->is_idle()) {
      return FailedPrecondition("%s: the tensor is in flight; wait for it first", what);
    }
  }
  for (RequestTable::Request& request : *requests) {
    FrameHeader& header = request.frame.header;
    KeyExchange& key = *tensors_->FindKey(header.key);
    // Numbers rise in the order of sending: a server takes a lower number for a repeat.
    if (header.part != StatePart::kNone) {
      header.request = key.NextRequestNumber();
    } else {
      header.step = key.NextBroadcast();
    }
    open_[header.key] = caller;
    key.set_has_server_request(true);
  }
  caller->left = requests->size();
  return absl::OkStatus();
}

void ServerRequests::OnAnswer(Key key, absl::StatusOr<Frame> answer) {
  MutexLock lock(tensors_->mutex());
  const auto found = open_.find(key);
  // The caller has given up, and has released the key.
  if (found == open_.end()) return;
  Caller& caller = *found->second;
  Release(key);
  if (answer.ok()) {
    caller.answers[key] = *std::move(answer);
  } else if (!(caller.takes_not_found && absl::IsNotFound(answer.status()))) {
    // An error ends the wait. Ask withdraws the requests that have no answer then.
    caller.status = answer.status();
  }
  --caller.left;
  answered_.SignalAll();
}

void ServerRequests::Release(Key key) {
  open_.erase(key);
  KeyExchange* const exchange = tensors_->FindKey(key);
  exchange->set_has_server_request(false);
  (void)tensors_->RemoveIfUnused(exchange);
}

bool ServerRequests::IsWaiting(Key key, const Caller& caller) const {
  const auto found = open_.find(key);  // may be the next caller's already
  return found != open_.end() && found->second == &caller;
}

bool ServerRequests::AwaitAnswers(const Caller& caller, absl::Time until) {
  MutexLock lock(tensors_->mutex());
  while (caller.left > 0 && caller.status.ok()) {
    if (clock_->Now() >= until) return false;
    clock_->WaitUntil(&answered_, tensors_->mutex(), until);
  }
  return true;
}

std::string ServerRequests::WaitedForBy(const Caller& caller) const {
  MutexLock lock(tensors_->mutex());
  // One name is enough for a line of the log: the first node that is waited for.
  for (const auto& [key, of] : open_) {
    if (of != &caller) continue;
    const std::string whom = requests_->WaitingFor(key);
    if (!whom.empty()) return ": waiting for " + whom + WhyTheWaitGoesOn(whom);
  }
  return "";
}

absl::StatusOr<ServerRequests::Answers> ServerRequests::Ask(
    const std::string& what, std::vector<RequestTable::Request> requests, absl::Time deadline,
    bool takes_not_found) {
  struct Asked {
    Step step;
    std::string tensor;
    bool submitted = false;
  };
  Caller caller{.takes_not_found = takes_not_found};
  std::map<Key, Asked> asked;
  const absl::Time began = clock_->Now();
  {
    MutexLock lock(tensors_->mutex());
    BDN_RETURN_IF_ERROR(Register(what, &requests, &caller));
  }
  absl::Status status;
  for (RequestTable::Request& request : requests) {
    const Key key = request.frame.header.key;
    // Noted also for requests that are not sent after an error, as Register has taken their keys.
    Asked& entry = asked[key] = {request.frame.header.step, request.tensor};
    if (!status.ok()) continue;
    status = requests_->Submit(std::move(request), {.answered = [this, key](auto outcome) {
                                 OnAnswer(key, std::move(outcome.frame));
                               }});
    entry.submitted = status.ok();
  }
  for (absl::Time report = began + kReportInterval;
       status.ok() && !AwaitAnswers(caller, std::min(report, deadline)) && report < deadline;
       report += kReportInterval) {
    LogWarning("still waiting: %s%s", what, WaitedForBy(caller));
  }
  MutexLock lock(tensors_->mutex());
  if (status.ok()) status = caller.status;
  for (const auto& [key, request] : asked) {
    if (!IsWaiting(key, caller)) continue;
    if (status.ok()) {
      status = WithFields(DeadlineExceeded("%s did not end in time", what),
                          {.tensor = request.tensor,
                           .stage = "exchange",
                           .waiting_for = requests_->WaitingFor(key)});
    }
    // `caller` lives on this stack, and an answer that is being delivered writes to it. It must
    // also not be taken for an answer to the next caller. So this call waits for it; that is short,
    // as OnAnswer only needs the lock.
    if (request.submitted && !requests_->Withdraw(key, request.step)) {
      while (IsWaiting(key, caller)) answered_.Wait(tensors_->mutex());
    }
    if (IsWaiting(key, caller)) Release(key);
  }
  if (!status.ok()) return status;
  return std::move(caller.answers);
}

// ---- Broadcasts

absl::Status ServerRequests::Broadcast(const BroadcastCall& call, uint32_t id,
                                       absl::Time deadline) {
  const ScatteredBytes data(call.data);
  std::vector<RequestTable::Request> requests;
  std::vector<TensorPart> parts;
  bool is_root;
  {
    MutexLock lock(tensors_->mutex());
    BDN_RETURN_IF_ERROR(tensors_->participation().Check());
    is_root = tensors_->participation().rank == call.root;
    const Tensor& tensor = tensors_->at(id);
    parts = tensor.parts;
    for (const TensorPart& part : parts) {
      FrameHeader header = BroadcastHeader(is_root ? FrameType::kInit : FrameType::kFetch,
                                           part.exchange->id(), kNumberedLater, part.elements);
      if (!is_root && call.holding == Holding::kValue) header.flags = kFlagUnwanted;
      requests.push_back(RequestFor(part.exchange->key(), MakeFrame(header, {}),
                                    tensor.declaration.name, call.root));
    }
  }
  // Without the lock, as these are passes over all bytes.
  for (size_t i = 0; i < parts.size(); ++i) {
    const auto [offset, size] = std::pair(parts[i].offset, parts[i].elements);
    Frame& frame = requests[i].frame;
    if (is_root) {
      // They are copied, because a transport may still be sending them when the call has timed out.
      frame = MakeFrame(frame.header, data.Copy(offset, size));
    } else if (call.holding == Holding::kUnknown) {
      Buffer scratch;
      frame = MakeFrame(frame.header, DigestPayload(data.View(offset, size, &scratch)));
    }
  }
  BDN_ASSIGN_OR_RETURN(const Answers values,
                       Ask("broadcast '" + call.name + "'", std::move(requests), deadline));
  if (is_root || call.holding == Holding::kValue) return absl::OkStatus();
  for (const TensorPart& part : parts) {
    const Frame& value = values.at(part.key);
    if (call.holding == Holding::kUnknown && IsSame(value, part.elements)) continue;
    // A server is a peer: its bytes are checked before they are copied.
    if (value.payload.size() != part.elements) {
      return Internal("broadcast '%s': a value of %d bytes, not %d", call.name,
                      value.payload.size(), part.elements);
    }
    data.Write(part.offset, value.payload.span());
  }
  return absl::OkStatus();
}

// ---- Where keys stand

absl::StatusOr<std::map<Key, KeyPosition>> ServerRequests::AskPositions(std::span<const Key> keys,
                                                                        absl::Time deadline) {
  std::vector<RequestTable::Request> requests;
  {
    MutexLock lock(tensors_->mutex());
    for (const Key id : keys) {
      const KeyExchange* const exchange = tensors_->FindKey(id);
      if (exchange == nullptr || exchange->is_retired()) continue;
      const DeclaredKey& key = exchange->key();
      const FrameHeader header =
          StateHeader(FrameType::kFetch,
                      {.part = StatePart::kPosition, .key = id, .num_elements = key.entry.elements},
                      /*step=*/0, kNumberedLater);
      RequestTable::Request request = RequestFor(key, Frame{header, {}}, key.tensor_names[0], -1);
      // A server may have been lost a moment ago, and the key be made again.
      request.is_patient = true;
      requests.push_back(std::move(request));
    }
  }
  std::map<Key, KeyPosition> positions;
  if (requests.empty()) return positions;
  BDN_ASSIGN_OR_RETURN(const Answers answers,
                       Ask("where tensors stand", std::move(requests), deadline,
                           /*takes_not_found=*/true));
  for (const auto& [key, value] : answers) {
    BDN_ASSIGN_OR_RETURN(positions[key], DecodePosition(value.payload.span()));
  }
  return positions;
}

// ---- What servers hold of a tensor

absl::StatusOr<ServerRequests::Answers> ServerRequests::AskAboutState(uint32_t id, FrameType type,
                                                                      const PartFn& part_of,
                                                                      Step step,
                                                                      const PayloadFn& payload,
                                                                      absl::Time deadline) {
  std::vector<RequestTable::Request> requests;
  std::string name;
  {
    MutexLock lock(tensors_->mutex());
    BDN_RETURN_IF_ERROR(tensors_->participation().failed);
    BDN_ASSIGN_OR_RETURN(const Tensor* tensor, tensors_->FindDense(id));
    name = tensor->declaration.name;
    for (const TensorPart& of : tensor->parts) {
      const DeclaredKey& key = of.exchange->key();
      const std::optional<StatePart> part = part_of(key);
      if (!part.has_value()) continue;
      const FrameHeader header =
          StateHeader(type,
                      {.part = *part,
                       .key = key.entry.key,
                       .num_elements = key.entry.elements,
                       .element_offset = key.link.codecs.pull->segment_offset(of.segment)},
                      type == FrameType::kFetch ? tensor->pushed : step, kNumberedLater);
      requests.push_back(RequestFor(key, MakeFrame(header, payload(of)), name, 0));
    }
  }
  if (requests.empty()) return NotFound("tensor '%s' has none by its rule and codec", name);
  return Ask("the state of tensor '" + name + "'", std::move(requests), deadline);
}

absl::Status ServerRequests::Perform(StateCall* call, absl::Time deadline) {
  switch (call->what) {
    case StateCall::What::kGet:
      return FetchFloats(*call, WhereKept(call->server_part), deadline).status();
    case StateCall::What::kSet:
      return SetState(*call, deadline);
    case StateCall::What::kGetCounters:
      return GetCounters(call, deadline);
    case StateCall::What::kSetCounters:
      return SetCounters(*call, deadline);
    case StateCall::What::kSetRule:
      return SetRule(*call, deadline);
    case StateCall::What::kFetchWeights:
    case StateCall::What::kSyncWeights:
      return FetchWeights(*call, deadline);
    default:
      return Internal("no call about servers, of number %d", static_cast<int>(call->what));
  }
}

absl::Status ServerRequests::SetState(const StateCall& call, absl::Time deadline) {
  const auto floats = [&call](const TensorPart& of) {
    return EncodeFloats(call.in.subspan(of.offset, of.elements));
  };
  return AskAboutState(call.tensor, FrameType::kInit, WhereKept(call.server_part), call.step,
                       floats, deadline)
      .status();
}

absl::StatusOr<ServerRequests::Answers> ServerRequests::FetchFloats(const StateCall& call,
                                                                    const PartFn& part_of,
                                                                    absl::Time deadline) {
  const bool may_be_equal = call.what == StateCall::What::kSyncWeights;
  const std::span<float> out = call.out;
  std::vector<TensorPart> parts;
  {
    MutexLock lock(tensors_->mutex());
    BDN_ASSIGN_OR_RETURN(const Tensor* tensor, tensors_->FindDense(call.tensor));
    parts = tensor->parts;
  }
  const auto digest = [&](const TensorPart& of) {
    if (!may_be_equal) return Buffer();
    return DigestPayload(std::as_bytes(out.subspan(of.offset, of.elements)));
  };
  BDN_ASSIGN_OR_RETURN(Answers values,
                       AskAboutState(call.tensor, FrameType::kFetch, part_of, 0, digest, deadline));
  for (const TensorPart& of : parts) {
    const std::span<float> to = out.subspan(of.offset, of.elements);
    const auto value = values.find(of.key);
    if (value == values.end()) {
      std::fill(to.begin(), to.end(), 0.0f);
    } else if (may_be_equal && IsSame(value->second, to.size_bytes())) {
      continue;
    } else if (value->second.payload.size() != to.size_bytes()) {
      return Internal("a server sent %d bytes for %d elements", value->second.payload.size(),
                      to.size());
    } else {
      DecodeFloats(value->second.payload.span(), to);
    }
  }
  return values;
}

absl::Status ServerRequests::SetCounters(const StateCall& call, absl::Time deadline) {
  const auto payload = [&call](const TensorPart&) { return EncodeCounters(call.counters); };
  return AskAboutState(call.tensor, FrameType::kInit, WhereKept(StatePart::kCounters), call.step,
                       payload, deadline)
      .status();
}

absl::Status ServerRequests::SetRule(const StateCall& call, absl::Time deadline) {
  // One request for each key, which several tensors may share.
  std::map<Key, RequestTable::Request> requests;
  {
    MutexLock lock(tensors_->mutex());
    BDN_RETURN_IF_ERROR(tensors_->participation().failed);
    for (const uint32_t id : call.tensors) {
      BDN_ASSIGN_OR_RETURN(const Tensor* tensor, tensors_->FindDense(id));
      for (const TensorPart& of : tensor->parts) {
        const DeclaredKey& key = of.exchange->key();
        const FrameHeader header =
            StateHeader(FrameType::kInit,
                        {.part = StatePart::kRule,
                         .key = key.entry.key,
                         .num_elements = key.entry.elements,
                         .element_offset = key.link.codecs.pull->segment_offset(of.segment)},
                        tensor->pushed, kNumberedLater);
        Buffer text = Buffer::CopyOf(std::as_bytes(std::span(call.rule)));
        requests.emplace(key.entry.key, RequestFor(key, MakeFrame(header, std::move(text)),
                                                   tensor->declaration.name, 0));
      }
    }
  }
  std::vector<RequestTable::Request> together;
  for (auto& [key, request] : requests) together.push_back(std::move(request));
  return Ask("the update rule", std::move(together), deadline).status();
}

absl::Status ServerRequests::GetCounters(StateCall* call, absl::Time deadline) {
  BDN_ASSIGN_OR_RETURN(const Answers values,
                       AskAboutState(call->tensor, FrameType::kFetch,
                                     WhereKept(StatePart::kCounters), 0, kNoPayload, deadline));
  // Counters are the same in every partition of a tensor.
  BDN_ASSIGN_OR_RETURN(call->counters, DecodeCounters(values.begin()->second.payload.span()));
  return absl::OkStatus();
}

absl::Status ServerRequests::FetchWeights(const StateCall& call, absl::Time deadline) {
  BDN_ASSIGN_OR_RETURN(const Answers values, FetchFloats(call, WeightsOfWorkers, deadline));
  MutexLock lock(tensors_->mutex());
  BDN_ASSIGN_OR_RETURN(const Tensor* const found, tensors_->FindDense(call.tensor));
  const Tensor& tensor = *found;
  for (const TensorPart& of : tensor.parts) {
    if (of.exchange->keeps_copy() && of.exchange->is_idle()) {
      of.exchange->AdoptCopy(of.segment, call.out.subspan(of.offset, of.elements));
    }
    // Replies of whole weights or aggregates build on nothing.
    if (!of.exchange->key().link.codecs.keeps_replica()) continue;
    if (!of.exchange->is_idle()) {  // the replica belongs to a stage then
      return FailedPrecondition("tensor '%s' was pushed meanwhile; fetch before pushing",
                                tensor.declaration.name);
    }
    of.exchange->AdoptReplica(of.segment, values.at(of.key).header.base_step,
                              call.out.subspan(of.offset, of.elements));
  }
  return absl::OkStatus();
}

}  // namespace bdn
