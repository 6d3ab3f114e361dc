#ifndef BANDONEON_COMMON_CLUSTER_CONTROL_CHANNEL_H_
#define BANDONEON_COMMON_CLUSTER_CONTROL_CHANNEL_H_

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/cluster/credentials.h"

struct gpr_timespec;
namespace grpc {
class Channel;
class ClientContext;
class ServerContextBase;
class ServerCredentials;
}  // namespace grpc

namespace bdn {

// The one place where credentials become gRPC's. The token goes with each call.
std::shared_ptr<grpc::ServerCredentials> ServerCredentialsOf(const Credentials& credentials);
void ShowToken(const Credentials& credentials, grpc::ClientContext* context);
// Whether the caller showed the job's token. PermissionDenied says who it was.
absl::Status CheckToken(const Credentials& credentials, const grpc::ServerContextBase& context);

// A connection of its own to the scheduler at `address`, made when it is first used and again when
// it breaks.
std::shared_ptr<grpc::Channel> ConnectChannel(const std::string& address,
                                              const Credentials& credentials);

// `timeout` from now as gRPC takes it, by a clock that does not follow the system's.
gpr_timespec GrpcDeadline(absl::Duration timeout);
// Infinite is none.
void SetDeadline(absl::Duration timeout, grpc::ClientContext* context);

}  // namespace bdn

#endif  // BANDONEON_COMMON_CLUSTER_CONTROL_CHANNEL_H_
