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
  const auto known = node_of_.find(connection);
  if (known != node_of_.end() && known->second != hello.node) {
    return PermissionDenied("this connection belongs to node %d, not to node %d", known->second,
                            hello.node);
  }
  Node& its = nodes_[hello.node];
  if (known == node_of_.end()) {
    node_of_[connection] = hello.node;
    its.connections.push_back(connection);
  }
  OnHeard(connection, &its);
  return absl::OkStatus();
}

void SessionTable::OnHeard(ConnectionId connection, Node* node) {
  // The usual case, which costs no change of the list.
  if (node->connections.back() == connection) return;
  std::erase(node->connections, connection);
  node->connections.push_back(connection);
}

void SessionTable::OnHeard(ConnectionId connection, Key key) {
  Node& node = nodes_[node_of_.at(connection)];
  OnHeard(connection, &node);
  if (node.connections.size() == 1) return;
  if (node.asked.size() < kMostAsked || node.asked.contains(key)) node.asked[key] = connection;
}

void SessionTable::Forget(ConnectionId connection) {
  const auto found = node_of_.find(connection);
  if (found == node_of_.end()) return;
  const auto node = nodes_.find(found->second);
  std::erase(node->second.connections, connection);
  if (node->second.connections.size() == 1) node->second.asked.clear();
  if (node->second.connections.empty()) nodes_.erase(node);
  node_of_.erase(found);
}

absl::StatusOr<NodeId> SessionTable::NodeOf(ConnectionId connection) const {
  const auto found = node_of_.find(connection);
  if (found == node_of_.end()) {
    return Unauthenticated("say hello first: this connection is nobody's yet");
  }
  return found->second;
}

std::vector<std::pair<NodeId, std::vector<ConnectionId>>> SessionTable::Connections() const {
  std::vector<std::pair<NodeId, std::vector<ConnectionId>>> all;
  for (const auto& [id, node] : nodes_) all.emplace_back(id, node.connections);
  return all;
}

absl::StatusOr<ConnectionId> SessionTable::ConnectionOf(NodeId node, Key key) const {
  const auto found = nodes_.find(node);
  if (found == nodes_.end()) return NotFound("node %d has no connection", node);
  const auto asked = found->second.asked.find(key);
  // One that is gone since has left its entry behind.
  const bool is_there = asked != found->second.asked.end() && node_of_.contains(asked->second);
  return is_there ? asked->second : found->second.connections.back();
}

void SessionTable::OnResult(NodeId node, Key key) {
  const auto found = nodes_.find(node);
  if (found != nodes_.end()) found->second.asked.erase(key);
}

}  // namespace bdn
