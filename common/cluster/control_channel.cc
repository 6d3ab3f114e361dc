#include "common/cluster/control_channel.h"

#include <grpc/support/time.h>
#include <grpcpp/grpcpp.h>

#include "common/base/status.h"
#include "common/cluster/control_messages.h"

namespace bdn {
namespace {

// The metadata of every call that carries the job's token.
constexpr char kTokenMetadata[] = "bandoneon-token";

std::shared_ptr<grpc::ChannelCredentials> ChannelCredentialsOf(const Credentials&) {
  return grpc::InsecureChannelCredentials();
}

}  // namespace

std::shared_ptr<grpc::ServerCredentials> ServerCredentialsOf(const Credentials&) {
  return grpc::InsecureServerCredentials();
}

void ShowToken(const Credentials& credentials, grpc::ClientContext* context) {
  if (!credentials.token().empty()) context->AddMetadata(kTokenMetadata, credentials.token());
}

absl::Status CheckToken(const Credentials& credentials, const grpc::ServerContextBase& context) {
  const auto found = context.client_metadata().find(kTokenMetadata);
  const bool shown = found != context.client_metadata().end();
  if (credentials.Admits(shown ? std::string_view(found->second.data(), found->second.size())
                               : std::string_view())) {
    return absl::OkStatus();
  }
  return PermissionDenied("wrong token from %s", context.peer());
}

std::shared_ptr<grpc::Channel> ConnectChannel(const std::string& address,
                                              const Credentials& credentials) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(kMaxMessageBytes);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 1000);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
  // A connection of its own: two nodes in one process must not share the fate of one.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  // The scheduler is reached directly, whatever the environment says of web proxies.
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  return grpc::CreateCustomChannel(address, ChannelCredentialsOf(credentials), arguments);
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
