#ifndef BANDONEON_COMMON_CLUSTER_MEMBERSHIP_H_
#define BANDONEON_COMMON_CLUSTER_MEMBERSHIP_H_

#include <string>
#include <vector>

#include "common/base/ids.h"
#include "common/base/link_security.h"

namespace bdn {

struct NodeInfo {
  NodeId id = 0;
  Role role = Role::kWorker;
  Rank rank = 0;
  std::string data_address;  // where a server listens; empty for workers
  std::string host;          // for people: "hostname:pid"
  PublicKey public_key;      // of the data plane; no two nodes have the same one
  LinkSecurity data_security = LinkSecurity::kOpen;  // how a server listens

  bool operator==(const NodeInfo&) const = default;
};

// Who is in the job, at one epoch. An immutable snapshot.
struct Membership {
  Epoch epoch = 0;
  std::vector<NodeInfo> workers;  // by rank; the roster of every round
  std::vector<NodeInfo> servers;  // by rank

  const NodeInfo* Find(NodeId id) const {
    for (const auto* nodes : {&workers, &servers}) {
      for (const NodeInfo& node : *nodes) {
        if (node.id == id) return &node;
      }
    }
    return nullptr;
  }

  bool operator==(const Membership&) const = default;
};

}  // namespace bdn

#endif  // BANDONEON_COMMON_CLUSTER_MEMBERSHIP_H_
