#include "common/cluster/status_fetch.h"

#include <grpcpp/grpcpp.h>

#include <nlohmann/json.hpp>

#include "common/base/status.h"
#include "common/cluster/control_channel.h"
#include "common/cluster/control_messages.h"
#include "common/cluster/control_plane.h"
#include "common/cluster/listen_address.h"
#include "common/cluster/status_json.h"
#include "proto/control.grpc.pb.h"

namespace bdn {
namespace {

namespace wire = bandoneon::control;

}  // namespace

absl::StatusOr<std::string> FetchStatusJson(const std::string& address,
                                            const Credentials& credentials,
                                            absl::Duration timeout) {
  BDN_RETURN_IF_ERROR(CheckAddress(address));
  const auto stub = wire::Scheduler::NewStub(ConnectChannel(address, credentials));
  grpc::ClientContext context;
  SetDeadline(timeout, &context);
  ShowToken(credentials, &context);
  wire::StatusReply reply;
  const grpc::Status status = stub->Status(&context, wire::Empty(), &reply);
  if (!status.ok()) {
    return Annotate(FromGrpc(status), absl::StrFormat("status of the scheduler at %s", address));
  }
  const absl::StatusOr<std::string> json = StatusToJson(reply);
  if (!json.ok()) {
    return Internal("the status of the scheduler at %s is not understood: %s", address,
                    json.status().message());
  }
  auto with_versions = nlohmann::ordered_json::parse(*json);
  with_versions["control_version"] = ControlVersionOf(context);
  with_versions["own_control_version"] = kControlVersion;
  constexpr bool kAsciiOnly = true;
  return with_versions.dump(-1, ' ', kAsciiOnly);
}

}  // namespace bdn
