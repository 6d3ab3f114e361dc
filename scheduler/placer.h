#ifndef BANDONEON_SCHEDULER_PLACER_H_
#define BANDONEON_SCHEDULER_PLACER_H_

#include <cstdint>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "common/cluster/catalogue.h"
#include "common/cluster/membership.h"

namespace bdn {

// An assignment of keys to servers, for as long as the keys exist. It remembers the load of each
// server, so that the cost of placing is that of the new keys. Deterministic. Not thread-safe.
class Placer {
 public:
  // The keys that a server owns, summed up.
  struct Load {
    uint64_t keys = 0;
    uint64_t key_bytes = 0;     // as KeyBytes
    uint64_t server_bytes = 0;  // as ServerBytes
  };

  // REQUIRES: `servers` is not empty.
  explicit Placer(const std::vector<NodeInfo>& servers);

  // Returns the owners of `keys`, which follow those placed before in the catalogue. The keys of
  // tensors are placed before those of broadcasts, and those of tables last, by the rows that are
  // expected in them; the largest of a kind first. Each goes to the
  // server with the fewest bytes of its kind; among servers that are nearly level, to that which
  // holds the fewest of the two keys next to it, then to the lighter, then to that of the lower
  // rank.
  std::vector<NodeId> Place(std::span<const KeyEntry> keys);

  // Removes a key, which `owner` has by Place.
  void Remove(const KeyEntry& key, NodeId owner);

  // Returns an empty load where the node is no server.
  Load LoadOf(NodeId server) const;

 private:
  // The loads of all servers by one kind of keys.
  struct Loads {
    std::set<std::pair<uint64_t, size_t>> lightest;  // pairs of bytes and rank
    uint64_t total = 0;
  };

  void PlaceKind(KeyKind kind, std::span<const KeyEntry> keys, std::vector<size_t>* owners);
  size_t Choose(const Loads& loads, size_t before, size_t after) const;

  std::vector<NodeId> servers_;  // by rank
  absl::flat_hash_map<NodeId, size_t> ranks_;
  std::vector<Load> loads_;  // by rank
  Loads kinds_[3];           // by KeyKind
  size_t last_;              // the rank that owns the last key of the catalogue
};

}  // namespace bdn

#endif  // BANDONEON_SCHEDULER_PLACER_H_
