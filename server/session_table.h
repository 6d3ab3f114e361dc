#ifndef BANDONEON_SERVER_SESSION_TABLE_H_
#define BANDONEON_SERVER_SESSION_TABLE_H_

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/link_security.h"
#include "common/cluster/membership.h"
#include "common/transport/transport.h"
#include "common/wire/message.h"

namespace bdn {

// Which node a connection belongs to, and where a node's replies go now: on the connection on which
// it was heard last. A state machine; not thread-safe.
class SessionTable {
 public:
  // `secret`: what JoinReply gave to the nodes of this job.
  SessionTable(std::string job_id, std::string secret)
      : job_id_(std::move(job_id)), secret_(std::move(secret)) {}

  void SetMembership(std::shared_ptr<const Membership> membership) {
    membership_ = std::move(membership);
  }

  // Takes in a hello on a connection of `key`, as the transport has verified; none where it does not
  // ask. A repeat is fine. PermissionDenied for another job, a wrong secret, a node that is no
  // worker of the membership or has another key, and a connection of another node: the error says
  // nothing that the hello did not. Unavailable when no membership is known yet.
  absl::Status OnHello(ConnectionId connection, const PublicKey& key, const Hello& hello);
  // A frame of the node that the connection belongs to has come on it.
  void OnHeard(ConnectionId connection);
  // It never comes back.
  void Forget(ConnectionId connection);

  // The node that said hello on `connection`. Unauthenticated: nobody did.
  absl::StatusOr<NodeId> NodeOf(ConnectionId connection) const;
  // NotFound: it has said hello on none that is left.
  absl::StatusOr<ConnectionId> ConnectionOf(NodeId node) const;
  // Connections that said hello and are not gone.
  size_t size() const { return nodes_.size(); }

 private:
  const std::string job_id_;
  const std::string secret_;
  std::shared_ptr<const Membership> membership_;
  absl::flat_hash_map<ConnectionId, NodeId> nodes_;
  // Of each node, the one it was heard on last at the end.
  absl::flat_hash_map<NodeId, std::vector<ConnectionId>> connections_;
};

}  // namespace bdn

#endif  // BANDONEON_SERVER_SESSION_TABLE_H_
