#ifndef BANDONEON_SERVER_SHARD_MAP_H_
#define BANDONEON_SERVER_SHARD_MAP_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "common/cluster/catalogue.h"

namespace bdn {

// Which shard of a server has which of its keys. Keys never move. A value; not thread-safe.
class ShardMap {
 public:
  // REQUIRES: at least one shard.
  explicit ShardMap(size_t num_shards = 1) : bytes_(num_shards, 0) {}

  bool Has(Key key) const { return shards_.contains(key); }
  // Shard 0 answers for the keys that are not here.
  size_t ShardOf(Key key) const {
    const auto found = shards_.find(key);
    return found == shards_.end() ? 0 : found->second;
  }
  // Gives a key that is not here yet to the shard with the fewest bytes, and returns that.
  size_t Add(const KeyEntry& entry);

 private:
  std::vector<uint64_t> bytes_;  // by shard
  absl::flat_hash_map<Key, size_t> shards_;
};

}  // namespace bdn

#endif  // BANDONEON_SERVER_SHARD_MAP_H_
