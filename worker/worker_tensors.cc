#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "absl/time/clock.h"
#include "common/base/draw.h"
#include "common/base/status.h"
#include "compressors/codec_schedule.h"
#include "worker/error_fields.h"
#include "worker/worker.h"

// The worker's tensors: declaring them, broadcasting them, and the state of their links.

namespace bdn {
namespace {

// Puts the specs into canonical form, so that workers that mean the same say the same.
absl::Status Canonicalise(TensorDeclaration* tensor) {
  const auto bad = [tensor](const std::string& what) {
    return InvalidArgument("tensor '%s': %s", tensor->name, what);
  };
  if (tensor->elements == 0) return bad("it has no elements");
  if (tensor->kind == KeyKind::kBroadcast) return absl::OkStatus();
  if (!IsFloating(tensor->dtype)) {
    return bad(absl::StrFormat("%s cannot be averaged; broadcast it", DTypeName(tensor->dtype)));
  }
  if (!(tensor->momentum >= 0 && tensor->momentum < 1)) return bad("momentum is not in [0, 1)");
  if (tensor->momentum > 0 && tensor->dtype == DType::kFloat64)
    return bad("no momentum for float64");
  for (std::string* spec : {&tensor->push_spec, &tensor->pull_spec}) {
    const absl::StatusOr<CodecSchedule> schedule = ParseCodecSchedule(*spec);
    if (!schedule.ok()) return bad(std::string(schedule.status().message()));
    *spec = schedule->spec();
  }
  const absl::StatusOr<RuleSpec> rule = RuleSpec::Parse(tensor->rule);
  if (!rule.ok()) return bad(std::string(rule.status().message()));
  tensor->rule = rule->text();
  // Says now what a server would say of the catalogue.
  const absl::StatusOr<KeyCodecs> codecs =
      MakeKeyCodecs({.push_spec = tensor->push_spec,
                     .pull_spec = tensor->pull_spec,
                     .warmup_steps = tensor->warmup_steps,
                     .segment_elements = {tensor->elements},
                     .dtype = tensor->dtype,
                     .holds_weights = rule->holds_weights(),
                     .steps_by_signs = rule->steps_by_signs()});
  return codecs.ok() ? absl::OkStatus() : bad(std::string(codecs.status().message()));
}

absl::Status SameAsBefore(const TensorDeclaration& before, const TensorDeclaration& now) {
  if (before == now) return absl::OkStatus();
  const auto facts = [](const TensorDeclaration& t) {
    return absl::StrFormat("%s[%d] push=%s pull=%s rule=%s warmup=%d momentum=%g%s",
                           DTypeName(t.dtype), t.elements, t.push_spec, t.pull_spec, t.rule,
                           t.warmup_steps, t.momentum,
                           t.fuse ? absl::StrFormat(" fused in group %d", t.group) : "");
  };
  return InvalidArgument("tensor '%s' was declared as %s, and now as %s", now.name, facts(before),
                         facts(now));
}

std::vector<float>* MemoryOf(WorkerKey* key, LinkState what) {
  switch (what) {
    case LinkState::kResidual:
      return &key->residual;
    case LinkState::kMomentum:
      return &key->momentum;
    case LinkState::kReplica:
      return &key->replica;
    case LinkState::kLearningRate:
      break;
  }
  return nullptr;
}

}  // namespace

absl::StatusOr<std::vector<uint32_t>> Worker::Declare(std::vector<TensorDeclaration> tensors,
                                                      absl::Duration timeout) {
  std::vector<TensorDeclaration> fresh;
  MutexLock one_at_a_time(&declare_mu_);
  {
    MutexLock lock(&mu_);
    BDN_RETURN_IF_ERROR(CheckTakesPart());
    for (TensorDeclaration& tensor : tensors) {
      BDN_RETURN_IF_ERROR(Canonicalise(&tensor));
      const auto known = tensor_ids_.find(tensor.name);
      if (known == tensor_ids_.end()) {
        fresh.push_back(tensor);
      } else {
        BDN_RETURN_IF_ERROR(SameAsBefore(tensors_[known->second].declaration, tensor));
      }
    }
  }
  DeclareResult declared;
  if (!fresh.empty()) {
    BDN_ASSIGN_OR_RETURN(declared, control_->Declare(fresh, timeout));
  }
  MutexLock lock(&mu_);
  if (declared.catalogue != nullptr) BDN_RETURN_IF_ERROR(AddKeys(declared));
  std::vector<uint32_t> ids;
  for (const TensorDeclaration& tensor : tensors) {
    const auto found = tensor_ids_.find(tensor.name);
    if (found == tensor_ids_.end()) {
      return Internal("the scheduler's catalogue lacks tensor '%s'", tensor.name);
    }
    ids.push_back(found->second);
  }
  return ids;
}

// Adds what is new. Internal when the catalogue contradicts itself.
absl::Status Worker::AddKeys(const DeclareResult& declared) {
  const Catalogue& catalogue = *declared.catalogue;
  for (size_t id = tensors_.size(); id < catalogue.tensors.size(); ++id) {
    tensor_ids_.emplace(catalogue.tensors[id].name, static_cast<uint32_t>(id));
    tensors_.push_back({.declaration = catalogue.tensors[id]});
  }
  for (const KeyEntry& entry : catalogue.keys) {
    if (keys_.contains(entry.key)) continue;
    auto key = std::make_unique<WorkerKey>();
    key->entry = entry;
    key->server = declared.placement->OwnerOf(entry.key);
    key->catalogue_version = catalogue.version;
    KeyCodecsOptions options{.push_spec = entry.push_spec,
                             .pull_spec = entry.pull_spec,
                             .warmup_steps = entry.warmup_steps,
                             .dtype = entry.dtype};
    BDN_ASSIGN_OR_RETURN(key->rule, RuleSpec::Parse(entry.rule));
    options.holds_weights = key->rule.holds_weights();
    options.steps_by_signs = key->rule.steps_by_signs();
    for (size_t i = 0; i < entry.segments.size(); ++i) {
      const KeySegment& segment = entry.segments[i];
      const bool inside =
          segment.tensor < tensors_.size() && segment.elements > 0 &&
          segment.elements <= tensors_[segment.tensor].declaration.elements &&
          segment.offset <= tensors_[segment.tensor].declaration.elements - segment.elements;
      if (!inside) return Internal("key %s has a segment outside its tensor", entry.key.ToString());
      key->tensor_names.push_back(tensors_[segment.tensor].declaration.name);
      tensors_[segment.tensor].parts.push_back({key.get(), i, segment.offset, segment.elements});
      options.segment_elements.push_back(segment.elements);
    }
    if (key->tensor_names.empty()) return Internal("key %s has no segments", entry.key.ToString());
    key->name_hash = Draw::HashName(key->tensor_names[0]);
    if (entry.kind == KeyKind::kDense) {
      BDN_ASSIGN_OR_RETURN(key->codecs, MakeKeyCodecs(options));
    }
    keys_.emplace(entry.key, std::move(key));
  }
  return absl::OkStatus();
}

absl::StatusOr<MutableView> Worker::ViewOf(uint32_t id, void* data) const {
  MutexLock lock(&mu_);
  BDN_ASSIGN_OR_RETURN(const Tensor* tensor, FindDense(id));
  return MutableView{data, tensor->declaration.dtype, tensor->declaration.elements};
}

absl::Status Worker::Broadcast(const std::string& name, MutableByteSpan data, Rank root,
                               absl::Duration timeout) {
  if (root < 0 || root >= size()) {
    return InvalidArgument("broadcast '%s': root %d is not one of %d workers", name, root, size());
  }
  if (data.empty()) return absl::OkStatus();
  const absl::Time deadline = absl::Now() + timeout;
  TensorDeclaration declaration{.name = "broadcast/" + name,
                                .dtype = DType::kUInt8,
                                .elements = data.size(),
                                .kind = KeyKind::kBroadcast};
  BDN_ASSIGN_OR_RETURN(const std::vector<uint32_t> ids, Declare({declaration}, timeout));

  std::vector<RequestTable::Request> requests;
  std::vector<TensorPart> parts;
  {
    MutexLock lock(&mu_);
    BDN_RETURN_IF_ERROR(CheckTakesPart());
    Tensor& tensor = tensors_[ids[0]];
    parts = tensor.parts;
    requests = BroadcastRequests(&tensor, data, root);
  }
  BDN_ASSIGN_OR_RETURN(auto values, Ask("broadcast '" + name + "'", std::move(requests), deadline));
  if (rank() == root) return absl::OkStatus();
  for (const TensorPart& part : parts) {
    const Frame& value = values[part.key->entry.key];
    if (value.payload.size() != part.elements) {
      return Internal("broadcast '%s': a value of %d bytes, not %d", name, value.payload.size(),
                      part.elements);
    }
    std::memcpy(data.data() + part.offset, value.payload.data(), part.elements);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::map<Key, Frame>> Worker::Ask(const std::string& what,
                                                 std::vector<RequestTable::Request> requests,
                                                 absl::Time deadline) {
  Rendezvous rendezvous;
  rendezvous.left = requests.size();
  struct Asked {
    Step step;
    std::string tensor;
    bool submitted = false;
  };
  std::map<Key, Asked> asked;
  {
    MutexLock lock(&mu_);
    BDN_RETURN_IF_ERROR(CheckTakesPart());
    for (const RequestTable::Request& request : requests) {
      const Key key = request.frame.header.key;
      if (rendezvous_.contains(key) || !keys_.at(key)->queue.empty()) {
        return FailedPrecondition("%s: the tensor is in flight; wait for it first", what);
      }
    }
    for (RequestTable::Request& request : requests) {
      FrameHeader& header = request.frame.header;
      WorkerKey& key = *keys_.at(header.key);
      // Numbered in the order in which they go out: the server takes a lower number for a repeat.
      if (header.type == FrameType::kInit && key.entry.kind == KeyKind::kDense) {
        header.base_step = ++key.inits;
      }
      asked.emplace(header.key, Asked{header.step, request.tensor});
      rendezvous_[header.key] = &rendezvous;
    }
  }
  absl::Status status;
  for (RequestTable::Request& request : requests) {
    const Key key = request.frame.header.key;
    if (status.ok()) status = requests_->Submit(std::move(request), nullptr);
    asked.at(key).submitted = status.ok();
  }
  MutexLock lock(&mu_);
  while (status.ok() && rendezvous.left > 0 && rendezvous.status.ok() && absl::Now() < deadline) {
    changed_.WaitUntil(&mu_, deadline);
  }
  if (status.ok()) status = rendezvous.status;
  const auto is_open = [&](Key key) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    const auto found = rendezvous_.find(key);  // maybe the next caller's already
    return found != rendezvous_.end() && found->second == &rendezvous;
  };
  for (const auto& [key, request] : asked) {
    if (!is_open(key)) continue;
    if (status.ok()) {
      status = WithFields(DeadlineExceeded("%s did not end in time", what),
                          {.tensor = request.tensor,
                           .stage = "exchange",
                           .waiting_for = requests_->WaitingFor(key)});
    }
    // An answer that is on its way here must not be taken for the next request's.
    if (request.submitted && !requests_->Withdraw(key, request.step)) {
      while (is_open(key)) changed_.Wait(&mu_);
    }
    if (is_open(key)) rendezvous_.erase(key);
  }
  if (!status.ok()) return status;
  return std::move(rendezvous.values);
}

std::vector<RequestTable::Request> Worker::BroadcastRequests(Tensor* tensor, ByteSpan data,
                                                             Rank root) {
  const Step step = ++tensor->broadcasts;
  std::vector<RequestTable::Request> requests;
  for (const TensorPart& part : tensor->parts) {
    FrameHeader header;
    header.type = rank() == root ? FrameType::kInit : FrameType::kFetch;
    header.key = part.key->entry.key;
    header.step = step;
    header.num_elements = part.elements;
    Buffer payload;
    if (rank() == root) payload = Buffer::CopyOf(data.subspan(part.offset, part.elements));
    requests.push_back({.frame = MakeFrame(header, std::move(payload)),
                        .server = part.key->server,
                        .catalogue_version = part.key->catalogue_version,
                        .tensor = tensor->declaration.name,
                        .root = root});
  }
  return requests;
}

absl::Status Worker::CheckStateAccess(const Tensor& tensor, LinkState what, size_t size) const {
  const size_t expected = what == LinkState::kLearningRate ? 1 : tensor.declaration.elements;
  if (size != expected) {
    return InvalidArgument("tensor '%s' has %d elements, not %d", tensor.declaration.name, expected,
                           size);
  }
  for (const TensorPart& part : tensor.parts) {
    if (!part.key->queue.empty()) {
      return FailedPrecondition("tensor '%s' is in flight; wait for it first",
                                tensor.declaration.name);
    }
  }
  return absl::OkStatus();
}

absl::Status Worker::GetState(uint32_t id, LinkState what, std::span<float> out) const {
  MutexLock lock(&mu_);
  BDN_ASSIGN_OR_RETURN(const Tensor* tensor, FindDense(id));
  BDN_RETURN_IF_ERROR(CheckStateAccess(*tensor, what, out.size()));
  if (what == LinkState::kLearningRate) {
    out[0] = tensor->parts[0].key->previous_learning_rate;
    return absl::OkStatus();
  }
  for (const TensorPart& part : tensor->parts) {
    WorkerKey& key = *part.key;
    const std::vector<float>& state = *MemoryOf(&key, what);
    const bool is_kept =
        !state.empty() && (what != LinkState::kResidual || key.codecs.push_feedback.on);
    float* to = out.data() + part.offset;
    if (!is_kept) {
      std::fill_n(to, part.elements, 0.0f);
    } else {
      std::copy_n(state.begin() + key.codecs.push->segment_offset(part.segment), part.elements, to);
    }
  }
  return absl::OkStatus();
}

absl::Status Worker::SetState(uint32_t id, LinkState what, std::span<const float> in) {
  MutexLock lock(&mu_);
  BDN_ASSIGN_OR_RETURN(const Tensor* tensor, FindDense(id));
  BDN_RETURN_IF_ERROR(CheckStateAccess(*tensor, what, in.size()));
  if (!std::all_of(in.begin(), in.end(), [](float x) { return std::isfinite(x); })) {
    return InvalidArgument("tensor '%s': a state that is not finite", tensor->declaration.name);
  }
  for (const TensorPart& part : tensor->parts) {
    WorkerKey& key = *part.key;
    if (what == LinkState::kLearningRate) {
      key.previous_learning_rate = in[0];
      continue;
    }
    // A replica of one's own making fits no reply: the next fetches it.
    if (what == LinkState::kReplica) key.replica_step.reset();
    std::vector<float>& state = *MemoryOf(&key, what);
    state.resize(key.entry.elements);
    std::copy_n(in.begin() + part.offset, part.elements,
                state.begin() + key.codecs.push->segment_offset(part.segment));
  }
  return absl::OkStatus();
}

absl::StatusOr<Step> Worker::GetStep(uint32_t id) const {
  MutexLock lock(&mu_);
  BDN_ASSIGN_OR_RETURN(const Tensor* tensor, FindDense(id));
  return tensor->pushed;
}

}  // namespace bdn
