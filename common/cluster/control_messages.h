#ifndef BANDONEON_COMMON_CLUSTER_CONTROL_MESSAGES_H_
#define BANDONEON_COMMON_CLUSTER_CONTROL_MESSAGES_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/cluster/control_plane.h"

namespace grpc {
class Status;
}
namespace bandoneon::control {
class Catalogue;
class DeclareReply;
class DeclareRequest;
class Failure;
class JobConfig;
class JoinReply;
class JoinRequest;
class Leaving;
class Membership;
class NodeInfo;
class Placement;
}  // namespace bandoneon::control

// Between our types and the generated messages, for both ends of the control plane. Reading checks
// everything that a peer could have got wrong: InvalidArgument names the field.

namespace bdn {

// Of one message: the catalogue of some hundred thousand keys.
inline constexpr int kMaxMessageBytes = 256 << 20;

absl::Status FromGrpc(const grpc::Status& status);
grpc::Status ToGrpc(const absl::Status& status);

// Negative is for ever.
absl::Duration TimeoutFromMilliseconds(int64_t milliseconds);
int64_t TimeoutToMilliseconds(absl::Duration timeout);

void Write(const JobConfig& config, bandoneon::control::JobConfig* message);
void Write(const NodeInfo& node, bandoneon::control::NodeInfo* message);
void Write(const Membership& membership, bandoneon::control::Membership* message);
void Write(const Catalogue& catalogue, bandoneon::control::Catalogue* message);
void Write(const PlacementTable& placement, bandoneon::control::Placement* message);
void Write(const DeclareResult& declared, bandoneon::control::DeclareReply* message);
void Write(const std::vector<TensorDeclaration>& tensors,
           bandoneon::control::DeclareRequest* message);
void Write(const std::vector<Rank>& leaving, bandoneon::control::Leaving* message);
void Write(const JoinRequest& request, bandoneon::control::JoinRequest* message);
void Write(const absl::Status& status, bandoneon::control::Failure* message);

absl::StatusOr<JobConfig> Read(const bandoneon::control::JobConfig& message);
absl::StatusOr<Membership> Read(const bandoneon::control::Membership& message);
absl::StatusOr<Catalogue> Read(const bandoneon::control::Catalogue& message);
absl::StatusOr<PlacementTable> Read(const bandoneon::control::Placement& message);
absl::StatusOr<DeclareResult> Read(const bandoneon::control::DeclareReply& message);
absl::StatusOr<std::vector<Rank>> Read(const bandoneon::control::Leaving& message);
absl::StatusOr<std::vector<TensorDeclaration>> Read(
    const bandoneon::control::DeclareRequest& message);
absl::StatusOr<JoinRequest> Read(const bandoneon::control::JoinRequest& message);
// A code that is none, or OK, becomes Unknown: it is a failure all the same.
absl::Status ReadFailure(const bandoneon::control::Failure& message);

}  // namespace bdn

#endif  // BANDONEON_COMMON_CLUSTER_CONTROL_MESSAGES_H_
