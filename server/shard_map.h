#ifndef BANDONEON_SERVER_SHARD_MAP_H_
#define BANDONEON_SERVER_SHARD_MAP_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "common/cluster/catalogue.h"

namespace bdn {

// A map from a server's keys to its shards and their priorities. A key never moves to another
// shard. A value; not thread-safe.
class ShardMap {
 public:
  // REQUIRES: at least one shard.
  explicit ShardMap(size_t num_shards = 1) : bytes_(num_shards, 0) {}

  // The entry of one key.
  struct Place {
    size_t shard = 0;
    int32_t priority = 0;  // higher first; 0 before the first push
    Step pushed = 0;       // the step whose highest priority this is
    uint64_t bytes = 0;    // of the key, as counted for its shard
  };

  bool Has(Key key) const { return places_.contains(key); }
  // Returns a key's entry. For an unknown key it is shard 0, which answers that it has no such key.
  Place PlaceOf(Key key) const {
    const auto found = places_.find(key);
    return found == places_.end() ? Place() : found->second;
  }
  // Notes that a worker's push has arrived. A key has the highest priority of the pushes of the
  // step that was pushed last, even of pushes that are refused later.
  void NotePush(Key key, Step step, int32_t priority);
  // Gives a new key to the shard with the fewest bytes, and returns that shard.
  size_t Add(const KeyEntry& entry);
  // Removes a key. REQUIRES: Has(key).
  void Remove(Key key);

 private:
  std::vector<uint64_t> bytes_;  // by shard
  absl::flat_hash_map<Key, Place> places_;
};

}  // namespace bdn

#endif  // BANDONEON_SERVER_SHARD_MAP_H_
