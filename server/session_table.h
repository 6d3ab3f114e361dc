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

// A table of the node that each connection belongs to, and of the connection on which each node's
// replies go: the one on which it was heard last about the key. A worker that is far away divides
// its keys among several connections, and so the results. A state machine; not thread-safe.
class SessionTable {
 public:
  // `secret` is the data secret that JoinReply gave to the nodes of this job.
  SessionTable(std::string job_id, std::string secret)
      : job_id_(std::move(job_id)), secret_(std::move(secret)) {}

  void SetMembership(std::shared_ptr<const Membership> membership) {
    membership_ = std::move(membership);
  }

  // Takes a hello on a connection. `key` is the public key that the transport has verified for the
  // connection; empty if the transport verifies none. A repeat is fine. PermissionDenied: the hello
  // is of another job, has a wrong secret, is of a node that is no worker of the membership or has
  // another public key, or the connection belongs to another node; the error reveals nothing that
  // hellos on this connection did not say. Unavailable: no membership is known yet.
  absl::Status OnHello(ConnectionId connection, const PublicKey& key, const Hello& hello);
  // Notes that a frame about a key has come on a connection that has said hello.
  void OnHeard(ConnectionId connection, Key key);
  // Forgets a connection that is gone for good.
  void Forget(ConnectionId connection);

  // Returns the node that said hello on `connection`. Unauthenticated: none did.
  absl::StatusOr<NodeId> NodeOf(ConnectionId connection) const;
  // Returns the connection for a frame to a node about a key. NotFound: no connection is left on
  // which it said hello.
  absl::StatusOr<ConnectionId> ConnectionOf(NodeId node, Key key) const;
  // Returns the connections of all nodes that have said hello.
  std::vector<std::pair<NodeId, std::vector<ConnectionId>>> Connections() const;
  // Notes that a key's result goes to a node: what it asks next comes on any connection.
  void OnResult(NodeId node, Key key);
  // Returns the number of connections that have said hello and are not gone.
  size_t size() const { return node_of_.size(); }

 private:
  // The most keys of a node whose connections are remembered; a worker has fewer requests open.
  static constexpr size_t kMostAsked = 65536;

  struct Node {
    std::vector<ConnectionId> connections;  // the one on which it was heard last at the end
    // The connections on which it asked about keys; none while it has only one.
    absl::flat_hash_map<Key, ConnectionId> asked;
  };

  void OnHeard(ConnectionId connection, Node* node);

  const std::string job_id_;
  const std::string secret_;
  std::shared_ptr<const Membership> membership_;
  absl::flat_hash_map<ConnectionId, NodeId> node_of_;
  absl::flat_hash_map<NodeId, Node> nodes_;
};

}  // namespace bdn

#endif  // BANDONEON_SERVER_SESSION_TABLE_H_
