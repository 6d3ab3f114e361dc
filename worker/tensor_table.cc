#include "worker/tensor_table.h"

#include <utility>

#include "common/base/status.h"
#include "worker/pipeline/device_stages.h"

namespace bdn {

absl::Status Participation::Check() const {
  BDN_RETURN_IF_ERROR(failed);
  if (leaving > 0) return FailedPrecondition("worker %d is leaving the job", rank);
  return absl::OkStatus();
}

absl::Status TensorTable::Canonicalize(TensorDeclaration* tensor) {
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
  const absl::Status specs = CanonicalizeSpecs(tensor);
  return specs.ok() ? specs : bad(std::string(specs.message()));
}

absl::StatusOr<bool> TensorTable::IsNew(const TensorDeclaration& tensor) const {
  const uint32_t* known = FindId(tensor.name);
  if (known == nullptr) return true;
  const TensorDeclaration& before = tensors_[*known].declaration;
  if (before == tensor) return false;
  const auto facts = [](const TensorDeclaration& t) {
    return absl::StrFormat("%s[%d] push=%s pull=%s rule=%s warmup=%d momentum=%g%s",
                           DTypeName(t.dtype), t.elements, t.push_spec.str(), t.pull_spec.str(),
                           t.rule.str(), t.warmup_steps, t.momentum,
                           t.fuse ? absl::StrFormat(" fused in group %d", t.group) : "");
  };
  return InvalidArgument("tensor '%s' was declared as %s, and now as %s", tensor.name,
                         facts(before), facts(tensor));
}

absl::Status TensorTable::Add(const CatalogueDelta& delta) {
  const size_t first_new = tensors_.size();
  if (delta.first_tensor != first_new || delta.owners.size() != delta.keys.size()) {
    return Internal("catalogue %d begins at tensor %d, and %d are here", delta.version.catalogue,
                    delta.first_tensor, first_new);
  }
  for (const TensorDeclaration& tensor : delta.tensors) {
    ids_.emplace(tensor.name, static_cast<uint32_t>(tensors_.size()));
    tensors_.push_back({.declaration = tensor});
  }
  for (size_t i = 0; i < delta.keys.size(); ++i) {
    if (keys_.contains(delta.keys[i].key)) {
      return Internal("key %s is there twice", delta.keys[i].key.ToString());
    }
    BDN_RETURN_IF_ERROR(AddKey({.entry = delta.keys[i],
                                .server = delta.owners[i],
                                .catalogue_version = delta.version.catalogue}));
  }
  for (size_t id = first_new; id < tensors_.size(); ++id) {
    uint64_t covered = 0;
    for (const TensorPart& part : tensors_[id].parts) covered += part.elements;
    if (covered != tensors_[id].declaration.elements) {
      return Internal("tensor '%s' has %d elements, and keys for %d", tensors_[id].declaration.name,
                      tensors_[id].declaration.elements, covered);
    }
  }
  return absl::OkStatus();
}

absl::Status TensorTable::AddKey(DeclaredKey key) {
  const KeyEntry& entry = key.entry;
  for (const KeySegment& segment : entry.segments) {
    const bool inside =
        segment.tensor < tensors_.size() && segment.elements > 0 &&
        segment.elements <= tensors_[segment.tensor].declaration.elements &&
        segment.offset <= tensors_[segment.tensor].declaration.elements - segment.elements;
    if (!inside) return Internal("key %s has a segment outside its tensor", entry.key.ToString());
    const TensorDeclaration& tensor = tensors_[segment.tensor].declaration;
    if (tensor.kind != entry.kind || tensor.dtype != entry.dtype) {
      return Internal("key %s is not of the kind of tensor '%s'", entry.key.ToString(),
                      tensor.name);
    }
    key.tensor_names.push_back(tensors_[segment.tensor].declaration.name);
  }
  if (key.tensor_names.empty()) return Internal("key %s has no segments", entry.key.ToString());
  BDN_ASSIGN_OR_RETURN(key.link, MakeKeyLink(entry, key.tensor_names[0]));
  key.runs_on_device = RunsOnDevice(key);
  auto exchange = std::make_unique<KeyExchange>(std::move(key));
  const KeySegments& segments = exchange->key().entry.segments;
  for (size_t i = 0; i < segments.size(); ++i) {
    const KeySegment& segment = segments[i];
    tensors_[segment.tensor].parts.push_back({exchange.get(), i, segment.offset, segment.elements});
  }
  const Key id = exchange->id();
  keys_.emplace(id, std::move(exchange));
  return absl::OkStatus();
}

const uint32_t* TensorTable::FindId(const std::string& name) const {
  const auto found = ids_.find(name);
  return found == ids_.end() ? nullptr : &found->second;
}

absl::StatusOr<Tensor*> TensorTable::FindDense(uint32_t id) {
  if (id >= tensors_.size() || tensors_[id].declaration.kind != KeyKind::kDense) {
    return NotFound("no tensor of id %d was declared", id);
  }
  return &tensors_[id];
}

absl::StatusOr<Tensor*> TensorTable::FindIdle(uint32_t id) {
  BDN_ASSIGN_OR_RETURN(Tensor * tensor, FindDense(id));
  for (const TensorPart& part : tensor->parts) {
    if (!part.exchange->is_idle()) {
      return FailedPrecondition("tensor '%s' is in flight; wait for it first",
                                tensor->declaration.name);
    }
  }
  return tensor;
}

}  // namespace bdn
