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

// Places keys on servers, for as long as they are. Remembers what each server has, so that placing costs what is
// placed. Deterministic. Not thread-safe.
class Placer {
 public:
  // What a server owns.
  struct Load {
    uint64_t keys = 0;
    uint64_t key_bytes = 0;     // as KeyBytes
    uint64_t server_bytes = 0;  // as ServerBytes
  };

  // REQUIRES: there are servers.
  explicit Placer(const std::vector<NodeInfo>& servers);

  // The owners of `keys`, which follow those placed before in the catalogue. The largest key comes
  // first, and each goes to the server with the fewest bytes of its kind; among servers that are
  // nearly level, to one that does not hold the keys next to it, then to the lighter, then to that of
  // the lower rank.
  std::vector<NodeId> Place(std::span<const KeyEntry> keys);

  // The key, which `owner` has by Place, is no more.
  void Remove(const KeyEntry& key, NodeId owner);

  // Of nothing, where it is no server.
  Load LoadOf(NodeId server) const;

 private:
  // Of one kind of keys.
  struct Loads {
    std::set<std::pair<uint64_t, size_t>> lightest;  // bytes and rank
    uint64_t total = 0;
  };

  void PlaceKind(KeyKind kind, std::span<const KeyEntry> keys, std::vector<size_t>* owners);
  size_t Choose(const Loads& loads, size_t before, size_t after) const;

  std::vector<NodeId> servers_;  // by rank
  absl::flat_hash_map<NodeId, size_t> ranks_;
  std::vector<Load> loads_;  // by rank
  Loads kinds_[2];           // by KeyKind
  size_t last_;              // the rank that has the last key of the catalogue
};

}  // namespace bdn

#endif  // BANDONEON_SCHEDULER_PLACER_H_
