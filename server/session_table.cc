#include "server/session_table.h"

#include "common/base/secret.h"
#include "common/base/status.h"

namespace bdn {

absl::Status SessionTable::OnHello(ConnectionId connection, const PublicKey& key,
                                   const Hello& hello) {
  // The job and the secret first: a stranger must not learn which nodes there are.
  if (hello.job_id != job_id_) {
    return PermissionDenied("this server is not of job '%s', of which node %d called", hello.job_id,
                            hello.node);
  }
  if (!IsSameSecret(hello.token, secret_)) {
    return PermissionDenied("node %d of job '%s' has another secret", hello.node, hello.job_id);
  }
  if (membership_ == nullptr) return Unavailable("this server has no membership yet");
  const NodeInfo* node = membership_->Find(hello.node);
  if (node == nullptr || node->role != Role::kWorker || hello.role != Role::kWorker) {
    return PermissionDenied("node %d is no worker of job '%s'", hello.node, hello.job_id);
  }
  if (!key.empty() && node->public_key != key) {
    return PermissionDenied("this connection has not the key of node %d", hello.node);
  }
  const auto known = nodes_.find(connection);
  if (known != nodes_.end() && known->second != hello.node) {
    return PermissionDenied("this connection belongs to node %d, not to node %d", known->second,
                            hello.node);
  }
  if (known == nodes_.end()) {
    nodes_[connection] = hello.node;
    connections_[hello.node].push_back(connection);
  }
  OnHeard(connection);
  return absl::OkStatus();
}

void SessionTable::OnHeard(ConnectionId connection) {
  std::vector<ConnectionId>& connections = connections_[nodes_.at(connection)];
  // The usual case, which costs no change of the list.
  if (connections.back() == connection) return;
  std::erase(connections, connection);
  connections.push_back(connection);
}

void SessionTable::Forget(ConnectionId connection) {
  const auto found = nodes_.find(connection);
  if (found == nodes_.end()) return;
  const auto connections = connections_.find(found->second);
  std::erase(connections->second, connection);
  if (connections->second.empty()) connections_.erase(connections);
  nodes_.erase(found);
}

absl::StatusOr<NodeId> SessionTable::NodeOf(ConnectionId connection) const {
  const auto found = nodes_.find(connection);
  if (found == nodes_.end()) {
    return Unauthenticated("say hello first: this connection is nobody's yet");
  }
  return found->second;
}

absl::StatusOr<ConnectionId> SessionTable::ConnectionOf(NodeId node) const {
  const auto found = connections_.find(node);
  if (found == connections_.end()) return NotFound("node %d has no connection", node);
  return found->second.back();
}

}  // namespace bdn
