#ifndef BANDONEON_COMMON_CLUSTER_MEMBERSHIP_H_
#define BANDONEON_COMMON_CLUSTER_MEMBERSHIP_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "common/base/endpoint.h"
#include "common/base/ids.h"
#include "common/base/link_security.h"

namespace bdn {

// The most processes that may push through one worker.
inline constexpr int kMostProcesses = 1024;

// The facts about one node that others are told.
struct NodeInfo {
  NodeId id = 0;
  Role role = Role::kWorker;
  Rank rank = 0;
  std::vector<Endpoint> endpoints;  // of a server, the preferred one first; empty for workers
  std::string host;                 // "hostname:pid", for people to read
  PublicKey public_key;  // its CURVE key on the data plane; no two nodes have the same one
  int processes = 1;     // of a worker: the number of processes that push through it

  bool operator==(const NodeInfo&) const = default;
};

// The keys of one server are spread over so many slots, which move one by one to other servers when
// it is lost.
inline constexpr size_t kSlots = 16;
// Returns the slot of a key among those of its home.
constexpr size_t SlotOf(Key key) {
  // The multiplication spreads the partitions of one tensor over the slots.
  return static_cast<size_t>((key.value * 0x9E3779B97F4A7C15u) >> 60);
}
static_assert(kSlots == size_t{1} << (64 - 60));

// The server that answers for the keys of a slot.
struct SlotOwner {
  NodeId server = 0;  // 0: none, until one joins
  Epoch since = 0;    // the epoch in which it got the slot; 0: it has had it from the beginning

  bool operator==(const SlotOwner&) const = default;
};
using Slots = std::array<SlotOwner, kSlots>;

// The nodes of the job at one epoch: servers are told of all nodes, workers of the servers. An
// immutable snapshot once MakeIndex was called.
struct Membership {
  Epoch epoch = 0;
  std::vector<NodeInfo> workers;  // those that are present, by rank: the roster of every round
  std::vector<NodeInfo> servers;  // those that are present, by rank
  std::vector<Rank> vacant;       // rising: ranks of workers without which the job goes on
  // The last epoch that began with other workers than the epoch before; 0: none did. Rounds closed
  // before it cannot be made again: a lost worker's push is gone, and a newcomer has none.
  Epoch unsafe = 0;
  // The slots of servers that are lost. The catalogue names the server that a key was placed on,
  // its home, whatever has become of that.
  std::map<NodeId, Slots> moved;
  // Made by MakeIndex: the index in `workers` followed by `servers`.
  absl::flat_hash_map<NodeId, size_t> places;

  bool IsVacant(Rank rank) const { return std::ranges::binary_search(vacant, rank); }

  // Returns the server that answers for a key of this home.
  SlotOwner OwnerOf(Key key, NodeId home) const {
    const auto found = moved.find(home);
    return found == moved.end() ? SlotOwner{home, 0} : found->second[SlotOf(key)];
  }

  // Makes Find know the nodes. To be called once all nodes are in the lists.
  void MakeIndex() {
    places.clear();
    places.reserve(workers.size() + servers.size());
    for (size_t i = 0; i < workers.size(); ++i) places[workers[i].id] = i;
    for (size_t i = 0; i < servers.size(); ++i) places[servers[i].id] = workers.size() + i;
  }
  // Returns a node; null where there is none of this id. Takes as long in any membership.
  const NodeInfo* Find(NodeId id) const {
    const auto found = places.find(id);
    if (found == places.end()) return nullptr;
    const size_t place = found->second;
    return place < workers.size() ? &workers[place] : &servers[place - workers.size()];
  }

  bool operator==(const Membership&) const = default;
};

}  // namespace bdn

#endif  // BANDONEON_COMMON_CLUSTER_MEMBERSHIP_H_
