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

// The one place where credentials become gRPC's. With certificates every connection is mutual TLS,
// and the files are read again when they change. The token goes with each call, as metadata: who
// calls is known before a byte of the request is read.
std::shared_ptr<grpc::ServerCredentials> ServerCredentialsOf(const Credentials& credentials);
void ShowToken(const Credentials& credentials, grpc::ClientContext* context);
// A scheduler says, with each answer to who may ask, what version of control it speaks; 0 where the one that
// was asked did not. Of a caller, once its call has ended.
void ShowControlVersion(grpc::ServerContextBase* context);
uint32_t ControlVersionOf(const grpc::ClientContext& context);
// Whether the caller showed the job's token and, where there are certificates, one of the job's.
// PermissionDenied says who it was.
absl::Status CheckCaller(const Credentials& credentials, const grpc::ServerContextBase& context);
// Whether the caller's certificate, where there are certificates, lets it be `role`.
absl::Status CheckCallerRole(const Credentials& credentials, const grpc::ServerContextBase& context,
                             std::string_view role);

// A connection of its own to the scheduler at `address`, made when it is first used and again when
// it breaks. With certificates nothing is sent to who has none of a scheduler of the same job; the
// name of its host does not matter.
std::shared_ptr<grpc::Channel> ConnectChannel(const std::string& address,
                                              const Credentials& credentials);

// `timeout` from now as gRPC takes it, by a clock that does not follow the system's.
gpr_timespec GrpcDeadline(absl::Duration timeout);
// Infinite is none.
void SetDeadline(absl::Duration timeout, grpc::ClientContext* context);

}  // namespace bdn

#endif  // BANDONEON_COMMON_CLUSTER_CONTROL_CHANNEL_H_
