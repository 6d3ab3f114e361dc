#ifndef BANDONEON_COMMON_CLUSTER_CATALOGUE_H_
#define BANDONEON_COMMON_CLUSTER_CATALOGUE_H_

#include <compare>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "common/base/dtype.h"
#include "common/base/ids.h"
#include "common/base/rank_group.h"
#include "common/base/shared_text.h"

namespace bdn {

// The most bytes of a name, a spec or another text that a node sends.
inline constexpr size_t kMaxNameBytes = 4096;

// The kind of a key: how its values travel. The values are on the wire: never renumber.
enum class KeyKind : uint8_t {
  kDense = 0,      // push and reply, summed
  kBroadcast = 1,  // init and fetch: opaque bytes of one root
  kRows = 2,       // push and reply, of rows by 64-bit id; a tensor of this kind is a table
};

// Returns "dense", "broadcast" or "rows".
const char* KeyKindName(KeyKind kind);

// A worker's declaration of a tensor, made before its first use. Every worker of `ranks` must
// declare the same.
struct TensorDeclaration {
  // Unique in the job. At most kMaxNameBytes; a scheduler lets no name pass that is longer than its
  // setting max-name-bytes, which is 255 unless it is set.
  std::string name;
  DType dtype = DType::kFloat32;
  uint64_t elements = 0;  // of a table: those of one row
  KeyKind kind = KeyKind::kDense;
  SharedText push_spec = "none";  // canonical codec specs; not of kBroadcast
  SharedText pull_spec = "none";
  SharedText rule = "mean";
  uint64_t warmup_steps = 0;  // the first steps go both ways with `none`
  float momentum = 0.0f;      // applied by the workers before error feedback
  // Whether it may share a frame with its neighbours of the same declaration call. If so, all of
  // them are pushed (or said to be absent) together, step by step.
  bool fuse = false;
  // Only tensors of one group share a frame, because a frame has one learning rate.
  uint32_t group = 0;
  RankGroup ranks;   // the workers that exchange it; no other has anything of it
  SharedText table;  // of kRows: its TableSpec; else empty

  bool operator==(const TensorDeclaration&) const = default;
};

// A run of elements of one tensor inside a key.
struct KeySegment {
  uint32_t tensor = 0;  // its number in the catalogue
  uint64_t offset = 0;  // index of the first element in the tensor
  uint64_t elements = 0;

  bool operator==(const KeySegment&) const = default;
};

// A key's segments. Most keys have one.
using KeySegments = absl::InlinedVector<KeySegment, 1>;

// One key: the unit that is encoded, sent, summed and answered as one.
struct KeyEntry {
  Key key;
  DType dtype = DType::kFloat32;
  KeyKind kind = KeyKind::kDense;
  SharedText push_spec = "none";  // `none` where the key is under the compression threshold
  SharedText pull_spec = "none";
  SharedText rule = "mean";
  uint64_t warmup_steps = 0;
  float momentum = 0.0f;
  RankGroup ranks;  // as those of its tensors
  KeySegments segments;
  uint64_t elements = 0;  // of all segments
  // The number of keys into which the tables of a kRows key are divided; the key's partition is its
  // bucket. Else 0.
  uint32_t buckets = 0;
  uint64_t expected_rows = 0;  // of kRows: of all its tables, in this bucket; else 0

  bool operator==(const KeyEntry&) const = default;
};

// The version of a placement, which tells the keys that are placed. Later ones compare greater: an
// epoch may move keys, and within an epoch the placement only grows with the catalogue.
struct PlacementVersion {
  Epoch epoch = 0;         // epoch of the membership whose servers own the keys
  uint32_t catalogue = 0;  // version of the catalogue whose keys are placed

  auto operator<=>(const PlacementVersion&) const = default;
};

// The tensors and keys that one version adds to the catalogue, with the owners of its keys. The
// catalogue is everything declared so far: tensors, numbered in the order of rank 0's declarations,
// and the keys made of them; it is a list of these deltas. Immutable once it is shared.
struct CatalogueDelta {
  // Version of the catalogue with this delta; versions rise by one, from 1.
  PlacementVersion version;
  uint32_t first_tensor = 0;  // number of the first of `tensors`
  std::vector<TensorDeclaration> tensors;
  // Keys of these tensors; those of one tensor are contiguous, rising by partition.
  std::vector<KeyEntry> keys;
  std::vector<NodeId> owners;  // servers, by index in `keys`
  // Keys of earlier versions that are given up, because all workers are done with their tensors.
  std::vector<Key> retired;

  // Returns whether it adds a tensor that the worker of this rank exchanges: all tensors of a delta
  // have the same ranks.
  bool Concerns(Rank rank) const { return !tensors.empty() && tensors[0].ranks.Has(rank); }

  bool operator==(const CatalogueDelta&) const = default;
};
using SharedDelta = std::shared_ptr<const CatalogueDelta>;

// Checks a declaration. InvalidArgument names the tensor and its fault: a name or spec that is
// empty, too long or has a NUL, no elements or more than can be addressed, a momentum outside [0,
// 1), a dense tensor of integers, specs on a broadcast; of a table a width over kMaxRowWidth, a
// type other than float32, a momentum, or a wrong TableSpec.
absl::Status CheckDeclaration(const TensorDeclaration& tensor);
// Checks all of them, and that no two have one name.
absl::Status CheckDeclarations(std::span<const TensorDeclaration> tensors);

// Return the bytes that a tensor or key stands for: float32 elements where it is dense, elements of
// its type where it is a broadcast, one row of each table where it is of rows.
uint64_t TensorBytes(const TensorDeclaration& tensor);
uint64_t KeyBytes(const KeyEntry& key);

// A count of the tensors that have a codec, and of those that go uncompressed all the same, because
// their keys are under the job's min-compress-bytes.
struct Uncompressed {
  uint64_t tensors = 0;  // tensors with a codec that have such a key
  uint64_t bytes = 0;    // bytes of such keys
  // All tensors with a codec, and their bytes.
  uint64_t of_tensors = 0;
  uint64_t of_bytes = 0;
};
// Counts the tensors of a delta. REQUIRES: CheckDelta(delta).ok().
Uncompressed CountUncompressed(const CatalogueDelta& delta);

// Returns InvalidArgument where `delta` contradicts itself: a key without an owner, without
// segments, or with a segment outside the tensors of this delta.
absl::Status CheckDelta(const CatalogueDelta& delta);

}  // namespace bdn

#endif  // BANDONEON_COMMON_CLUSTER_CATALOGUE_H_
