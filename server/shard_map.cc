#include "server/shard_map.h"

#include <algorithm>

namespace bdn {

size_t ShardMap::Add(const KeyEntry& entry) {
  const auto least = std::min_element(bytes_.begin(), bytes_.end());
  const uint64_t bytes = entry.elements * DTypeSize(entry.dtype);
  *least += bytes;
  const auto shard = static_cast<size_t>(least - bytes_.begin());
  places_.emplace(entry.key, Place{.shard = shard, .bytes = bytes});
  return shard;
}

void ShardMap::Remove(Key key) {
  const auto found = places_.find(key);
  bytes_[found->second.shard] -= found->second.bytes;
  places_.erase(found);
}

void ShardMap::NotePush(Key key, Step step, int32_t priority) {
  const auto found = places_.find(key);
  if (found == places_.end()) return;
  Place& place = found->second;
  // A push of another step begins anew, so that a key's priority can also fall.
  place.priority = place.pushed == step ? std::max(place.priority, priority) : priority;
  place.pushed = step;
}

}  // namespace bdn
