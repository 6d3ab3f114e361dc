#ifndef BANDONEON_COMMON_CLUSTER_MEMBERSHIP_H_
#define BANDONEON_COMMON_CLUSTER_MEMBERSHIP_H_

#include <cstddef>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "common/base/endpoint.h"
#include "common/base/ids.h"
#include "common/base/link_security.h"

namespace bdn {

// Processes that one worker may push for.
inline constexpr int kMostProcesses = 1024;

struct NodeInfo {
  NodeId id = 0;
  Role role = Role::kWorker;
  Rank rank = 0;
  std::vector<Endpoint> endpoints;  // of a server, the preferred one first; none of workers
  std::string host;                 // for people: "hostname:pid"
  PublicKey public_key;             // of the data plane; no two nodes have the same one
  int processes = 1;                // of a worker: how many processes push through it

  bool operator==(const NodeInfo&) const = default;
};

// Who is in the job, at one epoch: to servers all nodes, to workers the servers. An immutable
// snapshot, once MakeIndex was called.
struct Membership {
  Epoch epoch = 0;
  std::vector<NodeInfo> workers;               // by rank; the roster of every round
  std::vector<NodeInfo> servers;               // by rank
  absl::flat_hash_map<NodeId, size_t> places;  // by MakeIndex: in `workers`, then in `servers`

  // All nodes are in: Find knows them from now on.
  void MakeIndex() {
    places.clear();
    places.reserve(workers.size() + servers.size());
    for (size_t i = 0; i < workers.size(); ++i) places[workers[i].id] = i;
    for (size_t i = 0; i < servers.size(); ++i) places[servers[i].id] = workers.size() + i;
  }
  // Null where there is no such node. Takes as long in any membership.
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
