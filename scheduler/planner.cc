#include "scheduler/planner.h"

#include <algorithm>
#include <bit>
#include <map>
#include <string_view>
#include <tuple>

#include "common/base/status.h"
#include "common/cluster/table_spec.h"

namespace bdn {
namespace {

// Partitions begin at a multiple of this many elements where they are large enough: it is a block
// of the reductions, and of every codec's default.
constexpr uint64_t kAlignment = 1024;

uint64_t RoundUp(uint64_t value, uint64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

KeyEntry EmptyKey(const TensorDeclaration& tensor, uint32_t number, uint32_t partition) {
  return {.key = Key::Of(number, partition),
          .dtype = tensor.dtype,
          .kind = tensor.kind,
          .push_spec = tensor.push_spec,
          .pull_spec = tensor.pull_spec,
          .rule = tensor.rule,
          .warmup_steps = tensor.warmup_steps,
          .momentum = tensor.momentum,
          .ranks = tensor.ranks};
}

void AddSegment(const KeySegment& segment, KeyEntry* key) {
  key->segments.push_back(segment);
  key->elements += segment.elements;
}

// The attributes on which tensors of one group must agree.
using Attributes = std::tuple<DType, std::string_view, std::string_view, std::string_view, uint32_t,
                              uint64_t, float, RankGroup>;
Attributes AttributesOf(const TensorDeclaration& tensor) {
  return {tensor.dtype, tensor.push_spec,    tensor.pull_spec, tensor.rule,
          tensor.group, tensor.warmup_steps, tensor.momentum,  tensor.ranks};
}

// Returns the elements of one partition: even parts no larger than partition_bytes, in whole blocks
// where that fits.
uint64_t PartitionElements(const TensorDeclaration& tensor, uint64_t partition_bytes) {
  const uint64_t size = TensorBytes(tensor) / tensor.elements;
  const uint64_t most = std::max<uint64_t>(1, partition_bytes / size);
  const uint64_t count = (tensor.elements + most - 1) / most;
  return std::min(most, RoundUp((tensor.elements + count - 1) / count, kAlignment));
}

absl::Status Cut(const TensorDeclaration& tensor, uint32_t number, uint64_t partition_bytes,
                 std::vector<KeyEntry>* keys) {
  const uint64_t length = PartitionElements(tensor, partition_bytes);
  if (tensor.elements / length >= kMaxKeys) {
    return ResourceExhausted("tensor '%s' would be cut into more than %d partitions", tensor.name,
                             kMaxKeys);
  }
  for (uint64_t offset = 0; offset < tensor.elements; offset += length) {
    KeyEntry key = EmptyKey(tensor, number, static_cast<uint32_t>(offset / length));
    AddSegment({number, offset, std::min(length, tensor.elements - offset)}, &key);
    keys->push_back(std::move(key));
  }
  return absl::OkStatus();
}

// The keys of tables: a key for each bucket, of all tables of like attributes and width.
class TableKeys {
 public:
  TableKeys(uint32_t buckets, std::vector<KeyEntry>* keys) : buckets_(buckets), keys_(keys) {}

  absl::Status Add(const TensorDeclaration& table, uint32_t number) {
    BDN_ASSIGN_OR_RETURN(const TableSpec spec, TableSpec::Parse(table.table));
    BDN_RETURN_IF_ERROR(CheckMaxRows(spec, table.name, buckets_));
    const auto [first, is_new] =
        groups_.try_emplace({AttributesOf(table), table.elements}, keys_->size());
    for (uint32_t bucket = 0; is_new && bucket < buckets_; ++bucket) {
      keys_->push_back(EmptyKey(table, number, bucket));
      keys_->back().buckets = buckets_;
    }
    for (uint32_t bucket = 0; bucket < buckets_; ++bucket) {
      KeyEntry& key = (*keys_)[first->second + bucket];
      AddSegment({number, 0, table.elements}, &key);
      key.expected_rows += (spec.ExpectedRows() + buckets_ - 1) / buckets_;
    }
    return absl::OkStatus();
  }

 private:
  const uint32_t buckets_;
  std::vector<KeyEntry>* const keys_;
  std::map<std::pair<Attributes, uint64_t>, size_t> groups_;  // indices in keys_
};

// The groups that still take tensors, at most one for each set of attributes. The sets are views of
// the tensors, which outlive this.
class OpenGroups {
 public:
  OpenGroups(uint64_t fusion_bytes, std::vector<KeyEntry>* keys)
      : fusion_bytes_(fusion_bytes), keys_(keys) {}

  void Add(const TensorDeclaration& tensor, uint32_t number) {
    size_t& key = groups_.try_emplace(AttributesOf(tensor), kNone).first->second;
    // A tensor that does not fit closes the group, and begins the next.
    if (key == kNone || KeyBytes((*keys_)[key]) + TensorBytes(tensor) > fusion_bytes_) {
      key = keys_->size();
      keys_->push_back(EmptyKey(tensor, number, 0));
    }
    AddSegment({number, 0, tensor.elements}, &(*keys_)[key]);
  }

 private:
  static constexpr size_t kNone = ~size_t{0};
  const uint64_t fusion_bytes_;
  std::vector<KeyEntry>* const keys_;
  std::map<Attributes, size_t> groups_;  // indices in keys_
};

}  // namespace

absl::StatusOr<std::vector<KeyEntry>> PlanKeys(std::span<const TensorDeclaration> tensors,
                                               uint32_t first_tensor, const JobConfig& config) {
  // A group must fit into one partition.
  const uint64_t fusion_bytes = std::min(config.fusion_bytes, config.partition_bytes);
  std::vector<KeyEntry> keys;
  OpenGroups groups(fusion_bytes, &keys);
  TableKeys tables(RowBucketsOf(config.row_buckets, config.num_servers), &keys);
  for (size_t i = 0; i < tensors.size(); ++i) {
    const TensorDeclaration& tensor = tensors[i];
    const auto number = static_cast<uint32_t>(first_tensor + i);
    BDN_RETURN_IF_ERROR(CheckDeclaration(tensor));
    if (tensor.kind == KeyKind::kRows) {
      BDN_RETURN_IF_ERROR(tables.Add(tensor, number));
    } else if (tensor.fuse && tensor.kind == KeyKind::kDense &&
               TensorBytes(tensor) < fusion_bytes) {
      groups.Add(tensor, number);
    } else {
      BDN_RETURN_IF_ERROR(Cut(tensor, number, config.partition_bytes, &keys));
    }
    if (keys.size() > kMaxKeys) {
      return ResourceExhausted("the declaration needs more than %d keys", kMaxKeys);
    }
  }
  // After fusing: a group counts by its own size, and not by those of its tensors.
  for (KeyEntry& key : keys) {
    if (key.kind == KeyKind::kDense && KeyBytes(key) < config.min_compress_bytes) {
      key.push_spec = "none";
      key.pull_spec = "none";
    }
  }
  return keys;
}

}  // namespace bdn
