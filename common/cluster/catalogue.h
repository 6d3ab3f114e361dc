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
#include "common/base/shared_text.h"

namespace bdn {

// Of names, specs and other texts that nodes send.
inline constexpr size_t kMaxNameBytes = 4096;

enum class KeyKind : uint8_t {
  kDense = 0,      // push and reply, summed
  kBroadcast = 1,  // init and fetch: opaque bytes of one root
};

// What a worker says of a tensor before its first use. Every worker must say the same.
struct TensorDeclaration {
  std::string name;  // unique in the job, at most 255 bytes
  DType dtype = DType::kFloat32;
  uint64_t elements = 0;
  KeyKind kind = KeyKind::kDense;
  SharedText push_spec = "none";  // canonical codec specs; kDense only
  SharedText pull_spec = "none";
  SharedText rule = "mean";
  uint64_t warmup_steps = 0;  // the first steps go both ways with `none`
  float momentum = 0.0f;      // applied by the workers before error feedback
  // May share a frame with its neighbours of the same declaration call: all of them are then pushed
  // (or said to be absent) together, step by step.
  bool fuse = false;
  uint32_t group = 0;  // only tensors of one group share a frame: one learning rate each

  bool operator==(const TensorDeclaration&) const = default;
};

// A run of one tensor inside a key.
struct KeySegment {
  uint32_t tensor = 0;  // its number in the catalogue
  uint64_t offset = 0;  // first element, in the tensor
  uint64_t elements = 0;

  bool operator==(const KeySegment&) const = default;
};

// Most keys have one.
using KeySegments = absl::InlinedVector<KeySegment, 1>;

// One key: the unit that is encoded, sent, summed and answered.
struct KeyEntry {
  Key key;
  DType dtype = DType::kFloat32;
  KeyKind kind = KeyKind::kDense;
  SharedText push_spec = "none";  // `none` where the key is under the compression threshold
  SharedText pull_spec = "none";
  SharedText rule = "mean";
  uint64_t warmup_steps = 0;
  float momentum = 0.0f;
  KeySegments segments;
  uint64_t elements = 0;  // of all segments

  bool operator==(const KeyEntry&) const = default;
};

// Which keys are placed. Later ones compare greater: an epoch may move keys, and within an epoch the
// placement only grows with the catalogue.
struct PlacementVersion {
  Epoch epoch = 0;         // of the membership that has the servers
  uint32_t catalogue = 0;  // version of the catalogue whose keys are placed

  auto operator<=>(const PlacementVersion&) const = default;
};

// The catalogue is everything declared so far: tensors, numbered in the order of rank 0's
// declarations, and the keys made of them. It is a list of these, each what one version added to
// those before, and who owns the keys of it. Immutable once it is shared.
struct CatalogueDelta {
  PlacementVersion version;   // of the catalogue with this; versions rise by one, from 1
  uint32_t first_tensor = 0;  // number of the first of `tensors`
  std::vector<TensorDeclaration> tensors;
  std::vector<KeyEntry> keys;  // of these tensors; of one tensor contiguous, rising by partition
  std::vector<NodeId> owners;  // servers, by place in `keys`
  // Keys of earlier versions that are no more: all workers are done with their tensors.
  std::vector<Key> retired;

  bool operator==(const CatalogueDelta&) const = default;
};
using SharedDelta = std::shared_ptr<const CatalogueDelta>;

// InvalidArgument names the tensor and what is wrong with it: a name that is empty or too long, no
// elements or more than can be addressed, a dense tensor of integers, specs on a broadcast.
absl::Status CheckDeclaration(const TensorDeclaration& tensor);
// The same of all of them, and that no two have one name.
absl::Status CheckDeclarations(std::span<const TensorDeclaration> tensors);

// Bytes a tensor or key stands for: float32 where it is dense, those of its type where it is a
// broadcast.
uint64_t TensorBytes(const TensorDeclaration& tensor);
uint64_t KeyBytes(const KeyEntry& key);

// How much of what is to be compressed is not, because its keys are under the job's
// min-compress-bytes.
struct Uncompressed {
  uint64_t tensors = 0;  // that have such a key
  uint64_t bytes = 0;    // of such keys
  uint64_t of_tensors = 0;
  uint64_t of_bytes = 0;
};
// REQUIRES: CheckDelta(delta).ok().
Uncompressed CountUncompressed(const CatalogueDelta& delta);

// InvalidArgument where `delta` contradicts itself: a key without an owner, without segments, or
// with one outside the tensors of this delta.
absl::Status CheckDelta(const CatalogueDelta& delta);

}  // namespace bdn

#endif  // BANDONEON_COMMON_CLUSTER_CATALOGUE_H_
