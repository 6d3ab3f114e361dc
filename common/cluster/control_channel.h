#ifndef BANDONEON_COMMON_CLUSTER_CONTROL_CHANNEL_H_
#define BANDONEON_COMMON_CLUSTER_CONTROL_CHANNEL_H_

#include <memory>
#include <string>

#include "absl/time/time.h"

struct gpr_timespec;
namespace grpc {
class Channel;
class ClientContext;
}  // namespace grpc

namespace bdn {

// A connection of its own to the scheduler at `address`, made when it is first used and again when
// it breaks.
std::shared_ptr<grpc::Channel> ConnectChannel(const std::string& address);

// `timeout` from now as gRPC takes it, by a clock that does not follow the system's.
gpr_timespec GrpcDeadline(absl::Duration timeout);
// Infinite is none.
void SetDeadline(absl::Duration timeout, grpc::ClientContext* context);

}  // namespace bdn

#endif  // BANDONEON_COMMON_CLUSTER_CONTROL_CHANNEL_H_
