#ifndef BANDONEON_COMMON_CLUSTER_MEMBERSHIP_H_
#define BANDONEON_COMMON_CLUSTER_MEMBERSHIP_H_

#include <algorithm>
#include <cstddef>
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

// The nodes of the job at one epoch: servers are told of all nodes, workers of the servers. An
// immutable snapshot once MakeIndex was called.
struct Membership {
  Epoch epoch = 0;
  std::vector<NodeInfo> workers;  // those that are present, by rank: the roster of every round
  std::vector<NodeInfo> servers;  // by rank
  std::vector<Rank> vacant;       // rising: ranks of workers without which the job goes on
  // Made by MakeIndex: the index in `workers` followed by `servers`.
  absl::flat_hash_map<NodeId, size_t> places;

  bool IsVacant(Rank rank) const { return std::ranges::binary_search(vacant, rank); }

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
