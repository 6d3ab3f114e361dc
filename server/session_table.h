#ifndef BANDONEON_SERVER_SESSION_TABLE_H_
#define BANDONEON_SERVER_SESSION_TABLE_H_

#include <memory>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/cluster/credentials.h"
#include "common/cluster/membership.h"
#include "common/transport/transport.h"
#include "common/wire/message.h"

namespace bdn {

// Which node a connection belongs to, and where a node's replies go now. A state machine; not
// thread-safe.
class SessionTable {
 public:
  SessionTable(std::string job_id, Credentials credentials)
      : job_id_(std::move(job_id)), credentials_(std::move(credentials)) {}

  void SetMembership(std::shared_ptr<const Membership> membership) {
    membership_ = std::move(membership);
  }

  // Takes a hello in. A repeat is fine. PermissionDenied for another job (the error names both), a
  // wrong token, or a node that is no worker of the membership; Unavailable when no membership is
  // known yet.
  absl::Status OnHello(ConnectionId connection, const Hello& hello);

  // The node that said hello on `connection`. Unauthenticated: nobody did.
  absl::StatusOr<NodeId> NodeOf(ConnectionId connection) const;
  // The connection of the node's latest hello, by connection number. NotFound: it never said any.
  absl::StatusOr<ConnectionId> ConnectionOf(NodeId node) const;

 private:
  struct Latest {
    ConnectionId connection = 0;
    uint32_t number = 0;  // of the hello, by which later ones are told from repeats
  };
  const std::string job_id_;
  const Credentials credentials_;
  std::shared_ptr<const Membership> membership_;
  absl::flat_hash_map<ConnectionId, NodeId> nodes_;
  absl::flat_hash_map<NodeId, Latest> latest_;  // connections, by node
};

}  // namespace bdn

#endif  // BANDONEON_SERVER_SESSION_TABLE_H_
