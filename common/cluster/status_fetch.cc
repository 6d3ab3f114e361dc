#include "common/cluster/status_fetch.h"

#include <grpcpp/grpcpp.h>

#include "common/base/status.h"
#include "common/cluster/control_channel.h"
#include "common/cluster/control_messages.h"
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
  absl::StatusOr<std::string> json = StatusToJson(reply);
  if (!json.ok()) {
    return Internal("the status of the scheduler at %s is not understood: %s", address,
                    json.status().message());
  }
  return json;
}

}  // namespace bdn
