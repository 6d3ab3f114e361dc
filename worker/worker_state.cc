#include <algorithm>
#include <utility>

#include "absl/time/clock.h"
#include "common/base/status.h"
#include "worker/worker.h"

// What servers hold of the worker's tensors: set, asked for, fetched.

namespace bdn {
namespace {

constexpr auto NoPayload = [](const auto&) { return Buffer(); };

// What tells a caller's fetches apart, beyond the steps of any push: an answer may come twice.
constexpr Step kFirstFetch = Step{1} << 63;

// For the keys that keep a part: keys too small to be compressed have no memory to be told.
auto WhereKept(StatePart part) {
  return [part](const WorkerKey& key) -> std::optional<StatePart> {
    const bool lacks = (part == StatePart::kReplica && key.codecs.reply != ReplyKind::kDelta) ||
                       (part == StatePart::kResidual && !key.codecs.pull_feedback.on);
    if (lacks) return std::nullopt;
    return part;
  };
}

}  // namespace

absl::StatusOr<std::map<Key, Frame>> Worker::AskAboutState(
    uint32_t id, FrameType type, const PartFn& part_of, Step step,
    const std::function<Buffer(const TensorPart&)>& payload, absl::Duration timeout) {
  const absl::Time deadline = absl::Now() + timeout;
  std::vector<RequestTable::Request> requests;
  std::string name;
  {
    MutexLock lock(&mu_);
    BDN_RETURN_IF_ERROR(failed_);
    BDN_ASSIGN_OR_RETURN(const Tensor* tensor, FindDense(id));
    name = tensor->declaration.name;
    for (const TensorPart& of : tensor->parts) {
      const std::optional<StatePart> part = part_of(*of.key);
      if (!part.has_value()) continue;
      FrameHeader header;
      header.type = type;
      header.codec = static_cast<uint8_t>(*part);
      header.key = of.key->entry.key;
      header.step = step;
      if (type == FrameType::kFetch) header.step = kFirstFetch + of.key->fetches++;
      header.num_elements = of.key->entry.elements;
      header.element_offset = of.key->codecs.pull->segment_offset(of.segment);
      requests.push_back({.frame = MakeFrame(header, payload(of)),
                          .server = of.key->server,
                          .catalogue_version = of.key->catalogue_version,
                          .tensor = name,
                          .root = 0});
    }
  }
  if (requests.empty()) return NotFound("tensor '%s' has none by its rule and codec", name);
  return Ask("the state of tensor '" + name + "'", std::move(requests), deadline);
}

absl::Status Worker::SetServerState(uint32_t id, StatePart part, std::span<const float> values,
                                    Step step, absl::Duration timeout) {
  {
    MutexLock lock(&mu_);
    BDN_ASSIGN_OR_RETURN(const Tensor* tensor, FindDense(id));
    BDN_RETURN_IF_ERROR(CheckStateSize(*tensor, values.size()));
  }
  return AskAboutState(
             id, FrameType::kInit, WhereKept(part), step,
             [values](const TensorPart& of) {
               return EncodeFloats(values.subspan(of.offset, of.elements));
             },
             timeout)
      .status();
}

absl::StatusOr<std::map<Key, Frame>> Worker::FetchFloats(uint32_t id, const PartFn& part_of,
                                                         std::span<float> out,
                                                         absl::Duration timeout) {
  std::vector<TensorPart> parts;
  {
    MutexLock lock(&mu_);
    BDN_ASSIGN_OR_RETURN(const Tensor* tensor, FindDense(id));
    BDN_RETURN_IF_ERROR(CheckStateSize(*tensor, out.size()));
    parts = tensor->parts;
  }
  BDN_ASSIGN_OR_RETURN(auto values,
                       AskAboutState(id, FrameType::kFetch, part_of, 0, NoPayload, timeout));
  for (const TensorPart& of : parts) {
    const std::span<float> to = out.subspan(of.offset, of.elements);
    const auto value = values.find(of.key->entry.key);
    if (value == values.end()) {
      std::fill(to.begin(), to.end(), 0.0f);
    } else if (value->second.payload.size() != to.size_bytes()) {
      return Internal("a server sent %d bytes for %d elements", value->second.payload.size(),
                      to.size());
    } else {
      DecodeFloats(value->second.payload.span(), to);
    }
  }
  return values;
}

absl::Status Worker::GetServerState(uint32_t id, StatePart part, std::span<float> out,
                                    absl::Duration timeout) {
  return FetchFloats(id, WhereKept(part), out, timeout).status();
}

absl::Status Worker::SetServerCounters(uint32_t id, const StateCounters& counters, Step step,
                                       absl::Duration timeout) {
  return AskAboutState(
             id, FrameType::kInit, WhereKept(StatePart::kCounters), step,
             [&counters](const TensorPart&) { return EncodeCounters(counters); }, timeout)
      .status();
}

absl::StatusOr<StateCounters> Worker::GetServerCounters(uint32_t id, absl::Duration timeout) {
  BDN_ASSIGN_OR_RETURN(
      const auto values,
      AskAboutState(id, FrameType::kFetch, WhereKept(StatePart::kCounters), 0, NoPayload, timeout));
  // The same in every exchange of a tensor.
  return DecodeCounters(values.begin()->second.payload.span());
}

absl::Status Worker::FetchWeights(uint32_t id, std::span<float> out, absl::Duration timeout) {
  const auto as_workers_hold_them = [](const WorkerKey& key) -> std::optional<StatePart> {
    return key.codecs.reply == ReplyKind::kDelta ? StatePart::kReplica : StatePart::kWeights;
  };
  BDN_ASSIGN_OR_RETURN(const auto values, FetchFloats(id, as_workers_hold_them, out, timeout));
  MutexLock lock(&mu_);
  for (const TensorPart& of : tensors_[id].parts) {
    WorkerKey& key = *of.key;
    if (!key.codecs.keeps_replica()) continue;
    if (!key.queue.empty()) {  // then the replica is a stage's
      return FailedPrecondition("tensor '%s' was pushed meanwhile; fetch before pushing",
                                tensors_[id].declaration.name);
    }
    key.replica.resize(key.entry.elements);
    std::copy_n(out.begin() + of.offset, of.elements,
                key.replica.begin() + key.codecs.pull->segment_offset(of.segment));
    const Step step = values.at(key.entry.key).header.base_step;
    if (step != key.fetched_step) key.fetched.clear();
    key.fetched_step = step;
    key.fetched.insert(of.segment);
    if (key.fetched.size() == key.entry.segments.size()) {
      key.replica_step = step;
      key.fetched.clear();
    }
  }
  return absl::OkStatus();
}

absl::Status Worker::CheckStateSize(const Tensor& tensor, size_t elements) const {
  if (elements == tensor.declaration.elements) return absl::OkStatus();
  return InvalidArgument("tensor '%s' has %d elements, not %d", tensor.declaration.name,
                         tensor.declaration.elements, elements);
}

absl::Status Worker::SetStep(uint32_t id, Step step) {
  MutexLock lock(&mu_);
  BDN_ASSIGN_OR_RETURN(const Tensor* found, FindDense(id));
  Tensor& tensor = tensors_[id];
  for (const TensorPart& part : found->parts) {
    if (!part.key->queue.empty()) {
      return FailedPrecondition("tensor '%s' is in flight; wait for it first",
                                tensor.declaration.name);
    }
  }
  if (step < tensor.pushed) {
    return InvalidArgument("tensor '%s' is at step %d, past step %d: start a new job to go back",
                           tensor.declaration.name, tensor.pushed, step);
  }
  tensor.pushed = step;
  return absl::OkStatus();
}

}  // namespace bdn
