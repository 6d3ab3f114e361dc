#include "server/session_table.h"

#include "common/base/status.h"

namespace bdn {

absl::Status SessionTable::OnHello(ConnectionId connection, const Hello& hello) {
  if (hello.job_id != job_id_) {
    return PermissionDenied("this server is of job '%s', and node %d of job '%s' called", job_id_,
                            hello.node, hello.job_id);
  }
  if (!credentials_.Admits(hello.token)) {
    return PermissionDenied("node %d of job '%s' has another token", hello.node, hello.job_id);
  }
  if (membership_ == nullptr) return Unavailable("this server has no membership yet");
  const NodeInfo* node = membership_->Find(hello.node);
  if (node == nullptr || node->role != Role::kWorker || hello.role != Role::kWorker) {
    return PermissionDenied("node %d is no worker of job '%s' at epoch %d", hello.node, job_id_,
                            membership_->epoch);
  }
  const auto known = nodes_.find(connection);
  if (known != nodes_.end() && known->second != hello.node) {
    return PermissionDenied("this connection belongs to node %d, not to node %d", known->second,
                            hello.node);
  }
  nodes_[connection] = hello.node;
  Latest& latest = latest_[hello.node];
  if (latest.connection == 0 || hello.connection_number >= latest.number) {
    latest = {connection, hello.connection_number};
  }
  return absl::OkStatus();
}

absl::StatusOr<NodeId> SessionTable::NodeOf(ConnectionId connection) const {
  const auto found = nodes_.find(connection);
  if (found == nodes_.end()) {
    return Unauthenticated("say hello first: this connection is nobody's yet");
  }
  return found->second;
}

absl::StatusOr<ConnectionId> SessionTable::ConnectionOf(NodeId node) const {
  const auto found = latest_.find(node);
  if (found == latest_.end()) return NotFound("node %d has no connection", node);
  return found->second.connection;
}

}  // namespace bdn
