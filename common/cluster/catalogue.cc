#include "common/cluster/catalogue.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <set>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/escaping.h"
#include "common/base/status.h"

namespace bdn {
namespace {

// So that no product of elements and bytes an element overflows 64 bits.
constexpr uint64_t kMaxElements = uint64_t{1} << 48;

bool HasNul(const std::string& text) { return text.find('\0') != std::string::npos; }

}  // namespace

absl::Status CheckDeclaration(const TensorDeclaration& tensor) {
  if (tensor.name.empty()) return InvalidArgument("a tensor has no name");
  if (tensor.name.size() > kMaxNameBytes) {
    return InvalidArgument("tensor '%s...': the name has %d bytes, more than %d",
                           tensor.name.substr(0, 32), tensor.name.size(), kMaxNameBytes);
  }
  const auto bad = [&](const std::string& what) {
    return InvalidArgument("tensor '%s': %s", tensor.name, what);
  };
  // Code that ends a text at its first NUL would take two names or specs that differ behind it for
  // one.
  const SharedText* const texts[] = {&tensor.push_spec, &tensor.pull_spec, &tensor.rule};
  if (HasNul(tensor.name) || std::any_of(std::begin(texts), std::end(texts),
                                         [](const auto* text) { return HasNul(text->str()); })) {
    return InvalidArgument("tensor '%s': its name, codec specs and rule must not contain NUL",
                           absl::CHexEscape(tensor.name));
  }
  if (tensor.elements == 0) return bad("it has no elements");
  if (tensor.elements > kMaxElements) {
    return bad(absl::StrFormat("%d elements are more than %d", tensor.elements, kMaxElements));
  }
  for (const SharedText* text : texts) {
    if (text->empty() || text->size() > kMaxNameBytes) {
      return bad(
          absl::StrFormat("a codec spec or rule is empty or longer than %d bytes", kMaxNameBytes));
    }
  }
  if (!std::isfinite(tensor.momentum) || tensor.momentum < 0 || tensor.momentum >= 1) {
    return bad(absl::StrFormat("momentum %g is not in [0, 1)", tensor.momentum));
  }
  if (tensor.kind == KeyKind::kDense && !IsFloating(tensor.dtype)) {
    return bad(absl::StrFormat("%s cannot be summed", DTypeName(tensor.dtype)));
  }
  if (tensor.kind == KeyKind::kBroadcast &&
      (tensor.push_spec != "none" || tensor.pull_spec != "none")) {
    return bad("a broadcast takes no codec");
  }
  return absl::OkStatus();
}

absl::Status CheckDeclarations(std::span<const TensorDeclaration> tensors) {
  absl::flat_hash_set<std::string_view> names;
  names.reserve(tensors.size());
  for (const TensorDeclaration& tensor : tensors) {
    BDN_RETURN_IF_ERROR(CheckDeclaration(tensor));
    if (!names.insert(tensor.name).second) {
      return InvalidArgument("tensor '%s': it is declared twice in one call", tensor.name);
    }
  }
  return absl::OkStatus();
}

uint64_t TensorBytes(const TensorDeclaration& tensor) {
  return tensor.elements *
         (tensor.kind == KeyKind::kDense ? sizeof(float) : DTypeSize(tensor.dtype));
}

uint64_t KeyBytes(const KeyEntry& key) {
  return key.elements * (key.kind == KeyKind::kDense ? sizeof(float) : DTypeSize(key.dtype));
}

Uncompressed CountUncompressed(const CatalogueDelta& delta) {
  const auto has_codec = [](const auto& of) {
    return of.push_spec != "none" || of.pull_spec != "none";
  };
  Uncompressed count;
  for (const TensorDeclaration& tensor : delta.tensors) {
    if (!has_codec(tensor)) continue;
    ++count.of_tensors;
    count.of_bytes += TensorBytes(tensor);
  }
  // A tensor that is cut into several keys counts once.
  std::set<uint32_t> tensors;
  for (const KeyEntry& key : delta.keys) {
    if (has_codec(key)) continue;
    for (const KeySegment& segment : key.segments) {
      if (!has_codec(delta.tensors[segment.tensor - delta.first_tensor])) continue;
      tensors.insert(segment.tensor);
      count.bytes += segment.elements * sizeof(float);
    }
  }
  count.tensors = tensors.size();
  return count;
}

absl::Status CheckDelta(const CatalogueDelta& delta) {
  if (delta.owners.size() != delta.keys.size()) {
    return InvalidArgument("catalogue %d has %d keys and owners of %d", delta.version.catalogue,
                           delta.keys.size(), delta.owners.size());
  }
  for (size_t i = 0; i < delta.keys.size(); ++i) {
    const KeyEntry& key = delta.keys[i];
    if (delta.owners[i] == 0) return InvalidArgument("key %s has no owner", key.key.ToString());
    if (key.segments.empty()) return InvalidArgument("key %s is empty", key.key.ToString());
    for (const KeySegment& segment : key.segments) {
      // Wraps to a huge index where the tensor lies before the first.
      const uint32_t place = segment.tensor - delta.first_tensor;
      // Compared by subtraction: offset + elements of a peer's message may overflow.
      if (place >= delta.tensors.size() || segment.elements == 0 ||
          segment.elements > delta.tensors[place].elements ||
          segment.offset > delta.tensors[place].elements - segment.elements) {
        return InvalidArgument("key %s has a segment outside its tensor", key.key.ToString());
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace bdn
