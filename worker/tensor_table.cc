#include "worker/tensor_table.h"

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "common/base/memory_reserve.h"
#include "common/base/status.h"
#include "link/row_link.h"
#include "worker/pipeline/device_stages.h"
#include "worker/push_check.h"

namespace bdn {

absl::Status Participation::Check() const {
  BDN_RETURN_IF_ERROR(failed);
  if (leaving > 0) return FailedPrecondition("worker %d is leaving the job", rank);
  return absl::OkStatus();
}

absl::Status Participation::CheckIsIn() const {
  BDN_RETURN_IF_ERROR(Check());
  return is_candidate ? NotInYet(rank) : absl::OkStatus();
}

absl::Status TensorTable::Canonicalize(TensorDeclaration* tensor) {
  const auto bad = [tensor](const std::string& what) {
    return InvalidArgument("tensor '%s': %s", tensor->name, what);
  };
  if (tensor->elements == 0) return bad("it has no elements");
  if (tensor->kind == KeyKind::kBroadcast) return absl::OkStatus();
  if (tensor->kind == KeyKind::kRows) {
    BDN_RETURN_IF_ERROR(Annotate(CanonicalizeTable(tensor), "table '" + tensor->name + "'"));
    return CheckDeclaration(*tensor);
  }
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
  // What others have declared is not this worker's: the scheduler knows what has become of it.
  if (known == nullptr || !tensors_.at(*known)->is_declared) return true;
  const TensorDeclaration& before = tensors_.at(*known)->declaration;
  if (before == tensor) return false;
  const auto facts = [](const TensorDeclaration& t) {
    return absl::StrFormat("%s[%d] push=%s pull=%s rule=%s warmup=%d momentum=%g%s%s%s",
                           DTypeName(t.dtype), t.elements, t.push_spec.str(), t.pull_spec.str(),
                           t.rule.str(), t.warmup_steps, t.momentum,
                           t.fuse ? absl::StrFormat(" fused in group %d", t.group) : "",
                           t.ranks.is_all() ? "" : " of " + t.ranks.ToString(),
                           t.table.empty() ? "" : " " + t.table.str());
  };
  return InvalidArgument("tensor '%s' was declared as %s, and now as %s", tensor.name,
                         facts(before), facts(tensor));
}

absl::Status TensorTable::Add(const CatalogueDelta& delta) {
  // Deltas must follow one another, as ids count on from one to the next at all nodes. There are
  // gaps where tensors are of groups to which this worker does not belong.
  if (delta.first_tensor < next_id_ || delta.owners.size() != delta.keys.size()) {
    return Internal("catalogue %d begins at tensor %d, and ids below %d are here",
                    delta.version.catalogue, delta.first_tensor, next_id_);
  }
  const uint32_t first_new = next_id_ = delta.first_tensor;
  for (const TensorDeclaration& tensor : delta.tensors) {
    RemoveReplaced(tensor.name);
    // Tensors before keys: a key refers to its tensors by id.
    ids_[tensor.name] = next_id_;
    tensors_[next_id_] = std::make_unique<Tensor>(Tensor{.declaration = tensor});
    ++next_id_;
  }
  for (size_t i = 0; i < delta.keys.size(); ++i) {
    if (keys_.contains(delta.keys[i].key)) {
      return Internal("key %s is there twice", delta.keys[i].key.ToString());
    }
    BDN_RETURN_IF_ERROR(AddKey({.entry = delta.keys[i],
                                .server = delta.owners[i],
                                .catalogue_version = delta.version.catalogue}));
  }
  // A tensor with a gap between its keys would be left partly unexchanged without an error.
  for (uint32_t id = first_new; id < next_id_; ++id) {
    const Tensor& tensor = *tensors_.at(id);
    uint64_t covered = 0;
    for (const TensorPart& part : tensor.parts) covered += part.elements;
    // Each bucket of a table has whole rows.
    if (tensor.declaration.kind == KeyKind::kRows && !tensor.parts.empty()) {
      covered /= tensor.parts[0].exchange->key().entry.buckets;
    }
    if (covered != tensor.declaration.elements) {
      return Internal("tensor '%s' has %d elements, and keys for %d", tensor.declaration.name,
                      tensor.declaration.elements, covered);
    }
  }
  return absl::OkStatus();
}

absl::Status TensorTable::AddKey(DeclaredKey key) {
  const KeyEntry& entry = key.entry;
  for (const KeySegment& segment : entry.segments) {
    const Tensor* const found = Find(segment.tensor);
    // Written without an addition that could overflow: the numbers come from a peer.
    const bool inside = found != nullptr && segment.elements > 0 &&
                        segment.elements <= found->declaration.elements &&
                        segment.offset <= found->declaration.elements - segment.elements;
    if (!inside) return Internal("key %s has a segment outside its tensor", entry.key.ToString());
    const TensorDeclaration& tensor = found->declaration;
    if (tensor.kind != entry.kind || tensor.dtype != entry.dtype) {
      return Internal("key %s is not of the kind of tensor '%s'", entry.key.ToString(),
                      tensor.name);
    }
    key.tensor_names.push_back(tensor.name);
  }
  if (key.tensor_names.empty()) return Internal("key %s has no segments", entry.key.ToString());
  BDN_ASSIGN_OR_RETURN(key.link, MakeKeyLink(entry, key.tensor_names[0]));
  // The memory of messages is not allocated by `new`, so the reserve is told of the longest reply.
  MemoryReserve::ExpectMessage(LongestPayloadOf(entry, key.link.codecs));
  key.runs_on_device = RunsOnDevice(key);
  auto exchange = std::make_unique<KeyExchange>(std::move(key));
  const Key id = exchange->id();
  const KeySegments& segments = exchange->key().entry.segments;
  for (size_t i = 0; i < segments.size(); ++i) {
    const KeySegment& segment = segments[i];
    at(segment.tensor).parts.push_back({exchange.get(), id, i, segment.offset, segment.elements});
  }
  keys_.emplace(id, std::move(exchange));
  return absl::OkStatus();
}

// ---- Retiring

// A name that is declared anew was retired by all workers. If it is still here, this worker's own
// declaration of it was given up before its answer came, so the caller never knew the tensor.
void TensorTable::RemoveReplaced(const std::string& name) {
  const uint32_t* const known = FindId(name);
  if (known == nullptr) return;
  const uint32_t id = *known;
  for (KeyExchange* const exchange : Retire({&id, 1})) (void)RemoveIfUnused(exchange);
}

absl::StatusOr<std::vector<uint32_t>> TensorTable::CheckRetire(
    std::span<const uint32_t> ids) const {
  absl::flat_hash_set<uint32_t> known;
  std::vector<uint32_t> found;
  for (const uint32_t id : ids) {
    const Tensor* const tensor = Find(id);
    if (tensor != nullptr && !tensor->retired && known.insert(id).second) found.push_back(id);
  }
  for (size_t i = 0; i < found.size(); ++i) {
    const Tensor& tensor = *Find(found[i]);
    for (const TensorPart& part : tensor.parts) {
      // A key is removed as a whole: retiring one of its tensors alone would leave the others
      // without it.
      for (const KeySegment& segment : part.exchange->key().entry.segments) {
        const Tensor& other = *Find(segment.tensor);
        if (other.retired || known.contains(segment.tensor)) continue;
        if (!other.is_declared) {
          known.insert(segment.tensor);
          found.push_back(segment.tensor);
          continue;
        }
        return InvalidArgument(
            "tensor '%s' is fused with tensor '%s', which is not to be retired with it: retire all "
            "tensors of one declaration together",
            tensor.declaration.name, other.declaration.name);
      }
    }
  }
  return found;
}

std::vector<KeyExchange*> TensorTable::Retire(std::span<const uint32_t> ids) {
  absl::flat_hash_set<KeyExchange*> exchanges;
  for (const uint32_t id : ids) {
    const auto found = tensors_.find(id);
    if (found == tensors_.end() || found->second->retired) continue;
    Tensor& tensor = *found->second;
    tensor.retired = true;
    // The name is free at once, while the tensor stays until its exchanges in flight have ended.
    ids_.erase(tensor.declaration.name);
    for (const TensorPart& part : tensor.parts) {
      part.exchange->Retire();
      exchanges.insert(part.exchange);
    }
  }
  return std::vector<KeyExchange*>(exchanges.begin(), exchanges.end());
}

std::unique_ptr<KeyExchange> TensorTable::RemoveIfUnused(KeyExchange* exchange) {
  if (!exchange->is_retired() || !exchange->is_idle() || exchange->has_server_request()) {
    return nullptr;
  }
  for (const KeySegment& segment : exchange->key().entry.segments) {
    const auto tensor = tensors_.find(segment.tensor);
    // The key goes with the parts that point to it; a tensor goes with its last part.
    std::erase_if(tensor->second->parts,
                  [exchange](const TensorPart& part) { return part.exchange == exchange; });
    if (tensor->second->parts.empty()) tensors_.erase(tensor);
  }
  exchange->EndMonitor();
  if (on_removed_ != nullptr) on_removed_(exchange->id());
  auto removed = keys_.extract(exchange->id());
  return std::move(removed.mapped());
}

// ---- Looking things up

const uint32_t* TensorTable::FindId(const std::string& name) const {
  const auto found = ids_.find(name);
  return found == ids_.end() ? nullptr : &found->second;
}

const Tensor* TensorTable::Find(uint32_t id) const {
  const auto found = tensors_.find(id);
  return found == tensors_.end() ? nullptr : found->second.get();
}

absl::StatusOr<Tensor*> TensorTable::FindDense(uint32_t id) {
  const auto found = tensors_.find(id);
  if (found != tensors_.end() && !found->second->retired && found->second->is_declared &&
      found->second->declaration.kind == KeyKind::kDense) {
    return found->second.get();
  }
  return NotFound("no tensor of id %d was declared%s", id,
                  id < next_id_ ? ", or it was retired since" : "");
}

KeyExchange* TensorTable::FindKey(Key key) const {
  const auto found = keys_.find(key);
  return found == keys_.end() ? nullptr : found->second.get();
}

bool TensorTable::IsIdle(const Tensor& tensor) {
  return std::all_of(tensor.parts.begin(), tensor.parts.end(),
                     [](const TensorPart& part) { return part.exchange->is_idle(); });
}

}  // namespace bdn
