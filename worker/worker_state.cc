#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/time/clock.h"
#include "common/base/endian.h"
#include "common/base/status.h"
#include "worker/worker.h"

// What servers hold of the worker's tensors: set, asked for, fetched.

namespace bdn {
namespace {

Buffer FloatsOf(std::span<const float> values) {
  Buffer payload = Buffer::Allocate(values.size() * sizeof(float));
  for (size_t i = 0; i < values.size(); ++i) {
    StoreLittle(payload.mutable_span(), i * sizeof(float), values[i]);
  }
  return payload;
}

Buffer NoPayload() { return {}; }

}  // namespace

absl::StatusOr<std::map<Key, Frame>> Worker::AskAboutState(
    uint32_t id, FrameType type, StatePart part, Step step,
    const std::function<Buffer(const TensorPart&)>& payload, absl::Duration timeout) {
  const absl::Time deadline = absl::Now() + timeout;
  std::vector<Exchange::Question> questions;
  std::string name;
  {
    MutexLock lock(&mu_);
    BDN_RETURN_IF_ERROR(failed_);
    BDN_ASSIGN_OR_RETURN(const Tensor* tensor, FindDense(id));
    name = tensor->declaration.name;
    for (const TensorPart& of : tensor->parts) {
      if (!of.key->queue.empty()) {
        return FailedPrecondition("tensor '%s' is in flight; wait for it first", name);
      }
    }
    for (const TensorPart& of : tensor->parts) {
      FrameHeader header;
      header.type = type;
      header.codec = static_cast<uint8_t>(part);
      header.key = of.key->entry.key;
      header.step = step;
      if (type == FrameType::kInit) header.base_step = ++of.key->inits;
      header.num_elements = of.key->entry.elements;
      header.element_offset = of.key->codecs.pull->segment_offset(of.segment);
      questions.push_back({.frame = MakeFrame(header, payload(of)),
                           .server = of.key->entry.server,
                           .catalogue_version = of.key->catalogue_version,
                           .tensor = name,
                           .root = 0});
    }
  }
  return Ask("the state of tensor '" + name + "'", std::move(questions), deadline);
}

absl::Status Worker::SetServerState(uint32_t id, StatePart part, std::span<const float> values,
                                    Step step, absl::Duration timeout) {
  {
    MutexLock lock(&mu_);
    BDN_ASSIGN_OR_RETURN(const Tensor* tensor, FindDense(id));
    BDN_RETURN_IF_ERROR(CheckStateSize(*tensor, values.size()));
  }
  return AskAboutState(
             id, FrameType::kInit, part, step,
             [values](const TensorPart& of) {
               return FloatsOf(values.subspan(of.offset, of.elements));
             },
             timeout)
      .status();
}

absl::Status Worker::GetServerState(uint32_t id, StatePart part, std::span<float> out,
                                    absl::Duration timeout) {
  std::vector<TensorPart> parts;
  {
    MutexLock lock(&mu_);
    BDN_ASSIGN_OR_RETURN(const Tensor* tensor, FindDense(id));
    BDN_RETURN_IF_ERROR(CheckStateSize(*tensor, out.size()));
    parts = tensor->parts;
  }
  BDN_ASSIGN_OR_RETURN(auto values, AskAboutState(
                                        id, FrameType::kFetch, part, 0,
                                        [](const TensorPart&) { return NoPayload(); }, timeout));
  for (const TensorPart& of : parts) {
    const ByteSpan bytes = values[of.key->entry.key].payload.span();
    if (bytes.size() != of.elements * sizeof(float)) {
      return Internal("a server sent %d bytes for %d elements", bytes.size(), of.elements);
    }
    for (size_t i = 0; i < of.elements; ++i) {
      out[of.offset + i] = LoadLittle<float>(bytes, i * sizeof(float));
    }
  }
  return absl::OkStatus();
}

absl::Status Worker::SetServerCounters(uint32_t id, const StateCounters& counters, Step step,
                                       absl::Duration timeout) {
  return AskAboutState(
             id, FrameType::kInit, StatePart::kCounters, step,
             [&counters](const TensorPart&) { return EncodeCounters(counters); }, timeout)
      .status();
}

absl::StatusOr<StateCounters> Worker::GetServerCounters(uint32_t id, absl::Duration timeout) {
  BDN_ASSIGN_OR_RETURN(const auto values,
                       AskAboutState(
                           id, FrameType::kFetch, StatePart::kCounters, 0,
                           [](const TensorPart&) { return NoPayload(); }, timeout));
  // The same in every partition of a tensor.
  return DecodeCounters(values.begin()->second.payload.span());
}

absl::Status Worker::FetchWeights(uint32_t id, std::span<float> out, absl::Duration timeout) {
  std::vector<TensorPart> parts;
  StatePart part = StatePart::kWeights;
  {
    MutexLock lock(&mu_);
    BDN_ASSIGN_OR_RETURN(const Tensor* tensor, FindDense(id));
    BDN_RETURN_IF_ERROR(CheckStateSize(*tensor, out.size()));
    parts = tensor->parts;
    if (parts[0].key->codecs.reply == ReplyKind::kDelta) part = StatePart::kReplica;
  }
  BDN_ASSIGN_OR_RETURN(auto values, AskAboutState(
                                        id, FrameType::kFetch, part, 0,
                                        [](const TensorPart&) { return NoPayload(); }, timeout));
  MutexLock lock(&mu_);
  for (const TensorPart& of : parts) {
    WorkerKey& key = *of.key;
    const Frame& value = values[key.entry.key];
    if (value.payload.size() != of.elements * sizeof(float)) {
      return Internal("a server sent %d bytes for %d elements", value.payload.size(), of.elements);
    }
    for (size_t i = 0; i < of.elements; ++i) {
      out[of.offset + i] = LoadLittle<float>(value.payload.span(), i * sizeof(float));
    }
    if (!key.codecs.keeps_replica()) continue;
    key.replica.resize(key.entry.elements);
    std::copy_n(out.begin() + of.offset, of.elements,
                key.replica.begin() + key.codecs.pull->segment_offset(of.segment));
    key.fetched.insert(of.segment);
    if (key.fetched.size() == key.entry.segments.size()) {
      key.replica_step = value.header.base_step;
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
