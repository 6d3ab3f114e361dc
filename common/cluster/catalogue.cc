#include "common/cluster/catalogue.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <set>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/escaping.h"
#include "common/base/status.h"
#include "common/cluster/table_spec.h"

namespace bdn {
namespace {

// So that no product of elements and bytes an element overflows 64 bits.
constexpr uint64_t kMaxElements = uint64_t{1} << 48;
// More than the tables of any key may expect, and few enough that their bytes do not overflow.
constexpr uint64_t kMostExpectedRows = uint64_t{1} << 48;

bool HasNul(const std::string& text) { return text.find('\0') != std::string::npos; }

// Checks the facts that only a table has.
absl::Status CheckTable(const TensorDeclaration& tensor) {
  const auto bad = [&](const std::string& what) {
    return InvalidArgument("table '%s': %s", tensor.name, what);
  };
  if (tensor.elements > kMaxRowWidth) {
    return bad(
        absl::StrFormat("rows of %d elements: a row has 1 to %d", tensor.elements, kMaxRowWidth));
  }
  if (tensor.dtype != DType::kFloat32) {
    return bad(absl::StrFormat("%s: rows are float32", DTypeName(tensor.dtype)));
  }
  if (tensor.momentum != 0) {
    return bad(
        "momentum is kept for each element, also of rows that are not pushed: tables have none");
  }
  if (tensor.warmup_steps != 0) return bad("tables have no warm-up");
  if (tensor.table.size() > kMaxNameBytes) return bad("its spec is too long");
  return Annotate(TableSpec::Parse(tensor.table).status(),
                  absl::StrFormat("table '%s'", tensor.name));
}

}  // namespace

const char* KeyKindName(KeyKind kind) {
  switch (kind) {
    case KeyKind::kDense:
      return "dense";
    case KeyKind::kBroadcast:
      return "broadcast";
    case KeyKind::kRows:
      return "rows";
  }
  return "unknown";
}

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
  if (tensor.kind == KeyKind::kRows) return CheckTable(tensor);
  if (!tensor.table.empty()) return bad("only a table has the spec of one");
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
         (tensor.kind == KeyKind::kBroadcast ? DTypeSize(tensor.dtype) : sizeof(float));
}

uint64_t KeyBytes(const KeyEntry& key) {
  return key.elements * (key.kind == KeyKind::kBroadcast ? DTypeSize(key.dtype) : sizeof(float));
}

Uncompressed CountUncompressed(const CatalogueDelta& delta) {
  const auto has_codec = [](const auto& of) {
    return of.push_spec != "none" || of.pull_spec != "none";
  };
  Uncompressed count;
  for (const TensorDeclaration& tensor : delta.tensors) {
    if (!has_codec(tensor) || tensor.kind == KeyKind::kRows) continue;
    ++count.of_tensors;
    count.of_bytes += TensorBytes(tensor);
  }
  // A tensor that is cut into several keys counts once.
  std::set<uint32_t> tensors;
  for (const KeyEntry& key : delta.keys) {
    if (has_codec(key) || key.kind == KeyKind::kRows) continue;
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
    const bool is_of_rows = key.kind == KeyKind::kRows;
    if (is_of_rows ? !IsRowBuckets(key.buckets) || key.key.partition() >= key.buckets
                   : key.buckets != 0 || key.expected_rows != 0) {
      return InvalidArgument("key %s is one of %d buckets", key.key.ToString(), key.buckets);
    }
    if (key.expected_rows > kMostExpectedRows) {
      return InvalidArgument("key %s expects %d rows", key.key.ToString(), key.expected_rows);
    }
    for (const KeySegment& segment : key.segments) {
      // Wraps to a huge index where the tensor lies before the first.
      const uint32_t place = segment.tensor - delta.first_tensor;
      // Compared by subtraction: offset + elements of a peer's message may overflow.
      if (place >= delta.tensors.size() || segment.elements == 0 ||
          segment.elements > delta.tensors[place].elements ||
          segment.offset > delta.tensors[place].elements - segment.elements) {
        return InvalidArgument("key %s has a segment outside its tensor", key.key.ToString());
      }
      const TensorDeclaration& tensor = delta.tensors[place];
      const bool is_whole_row =
          segment.elements == tensor.elements && segment.elements == key.segments[0].elements;
      if (is_of_rows && (tensor.kind != KeyKind::kRows || !is_whole_row)) {
        return InvalidArgument("key %s has a segment that is no row of a table of its width",
                               key.key.ToString());
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace bdn
