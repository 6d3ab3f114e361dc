#ifndef BANDONEON_COMMON_CLUSTER_CONTROL_CHANNEL_H_
#define BANDONEON_COMMON_CLUSTER_CONTROL_CHANNEL_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

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

// Makes gRPC's credentials of ours; no other code does. With certificates every connection is
// mutual TLS, and the files are read again when they change. The token goes with each call, as
// metadata, so that a caller is known before a byte of its request is read.
std::shared_ptr<grpc::ServerCredentials> ServerCredentialsOf(const Credentials& credentials);
void ShowToken(const Credentials& credentials, grpc::ClientContext* context);
// Add to an answer, and read from one, the version of control that the scheduler speaks. It goes
// with each answer to a caller that may ask; ControlVersionOf is for the caller once its call has
// ended, and returns 0 where the scheduler did not say.
void ShowControlVersion(grpc::ServerContextBase* context);
uint32_t ControlVersionOf(const grpc::ClientContext& context);
// Checks whether the caller showed the job's token and, where there are certificates, one of the
// job's. PermissionDenied says who it was.
absl::Status CheckCaller(const Credentials& credentials, const grpc::ServerContextBase& context);
// Checks whether the caller's certificate, where there are certificates, lets it be `role`.
absl::Status CheckCallerRole(const Credentials& credentials, const grpc::ServerContextBase& context,
                             std::string_view role);

// Returns a connection to the scheduler at `address` that no other caller shares. It is made when
// it is first used, and again when it breaks. With certificates nothing is sent to a peer without
// one of a scheduler of the same job; the name of its machine does not matter.
std::shared_ptr<grpc::Channel> ConnectChannel(const std::string& address,
                                              const Credentials& credentials);

// Returns the time `timeout` from now as gRPC takes it, by a clock that does not follow the
// system's.
gpr_timespec GrpcDeadline(absl::Duration timeout);
// Sets the deadline of a call; an infinite timeout sets none.
void SetDeadline(absl::Duration timeout, grpc::ClientContext* context);

}  // namespace bdn

#endif  // BANDONEON_COMMON_CLUSTER_CONTROL_CHANNEL_H_
