#ifndef BANDONEON_SERVER_SHARD_MAP_H_
#define BANDONEON_SERVER_SHARD_MAP_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "common/cluster/catalogue.h"

namespace bdn {

// Which shard of a server has which of its keys, and how urgent they are. Keys never move. A value;
// not thread-safe.
class ShardMap {
 public:
  // REQUIRES: at least one shard.
  explicit ShardMap(size_t num_shards = 1) : bytes_(num_shards, 0) {}

  struct Place {
    size_t shard = 0;
    int32_t priority = 0;  // higher first; 0 before the first push
    Step pushed = 0;       // the step that this is the highest of
    uint64_t bytes = 0;    // what the shard has of it
  };

  bool Has(Key key) const { return places_.contains(key); }
  // Shard 0 answers for the keys that are not here.
  Place PlaceOf(Key key) const {
    const auto found = places_.find(key);
    return found == places_.end() ? Place() : found->second;
  }
  // A worker's push has come. A key is as urgent as the most urgent push of the step that was pushed
  // last, whatever becomes of them.
  void NotePush(Key key, Step step, int32_t priority);
  // Gives a key that is not here yet to the shard with the fewest bytes, and returns that.
  size_t Add(const KeyEntry& entry);
  // The key is no more. REQUIRES: Has(key).
  void Remove(Key key);

 private:
  std::vector<uint64_t> bytes_;  // by shard
  absl::flat_hash_map<Key, Place> places_;
};

}  // namespace bdn

#endif  // BANDONEON_SERVER_SHARD_MAP_H_
