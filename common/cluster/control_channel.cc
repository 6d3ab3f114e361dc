#include "common/cluster/control_channel.h"

#include <grpc/support/time.h>
#include <grpcpp/grpcpp.h>

#include "common/cluster/control_messages.h"

namespace bdn {

std::shared_ptr<grpc::Channel> ConnectChannel(const std::string& address) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(kMaxMessageBytes);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 1000);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
  // A connection of its own: two nodes in one process must not share the fate of one.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  // The scheduler is reached directly, whatever the environment says of web proxies.
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
}

gpr_timespec GrpcDeadline(absl::Duration timeout) {
  const timespec span = absl::ToTimespec(timeout);
  return gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC),
                      {span.tv_sec, static_cast<int32_t>(span.tv_nsec), GPR_TIMESPAN});
}

void SetDeadline(absl::Duration timeout, grpc::ClientContext* context) {
  if (timeout == absl::InfiniteDuration()) return;
  context->set_deadline(GrpcDeadline(timeout));
}

}  // namespace bdn
