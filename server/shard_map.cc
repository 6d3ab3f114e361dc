#include "server/shard_map.h"

#include <algorithm>

namespace bdn {

size_t ShardMap::Add(const KeyEntry& entry) {
  const auto least = std::min_element(bytes_.begin(), bytes_.end());
  *least += entry.elements * DTypeSize(entry.dtype);
  const auto shard = static_cast<size_t>(least - bytes_.begin());
  shards_.emplace(entry.key, shard);
  return shard;
}

}  // namespace bdn
