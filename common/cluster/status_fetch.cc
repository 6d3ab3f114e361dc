#include "common/cluster/status_fetch.h"

#include <grpcpp/grpcpp.h>

#include "common/base/ids.h"
#include "common/base/status.h"
#include "common/cluster/control_channel.h"
#include "common/cluster/control_messages.h"
#include "common/cluster/listen_address.h"
#include "proto/control.grpc.pb.h"

namespace bdn {
namespace {

namespace wire = bandoneon::control;

std::string Quoted(const std::string& text) {
  std::string quoted = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      quoted += std::string("\\") + c;
    } else if (byte < 0x20 || byte >= 0x7f) {
      quoted += absl::StrFormat("\\u%04x", byte);  // bytes of no known encoding, as Latin-1
    } else {
      quoted += c;
    }
  }
  return quoted + "\"";
}

std::string NodeJson(const wire::StatusReply::Node& node) {
  return absl::StrFormat(
      "{\"role\": %s, \"rank\": %d, \"node\": %d, \"host\": %s, \"address\": %s, \"left\": %s, "
      "\"step\": %d, \"bytes_sent\": %d, \"bytes_received\": %d, "
      "\"seconds_since_heard\": %.3f, \"keys\": %d, \"key_bytes\": %d}",
      Quoted(RoleName(static_cast<Role>(node.info().role()))), node.info().rank(), node.info().id(),
      Quoted(node.info().host()), Quoted(node.info().data_address()),
      node.left() ? "true" : "false", node.step(), node.bytes_sent(), node.bytes_received(),
      node.seconds_since_heard(), node.keys(), node.key_bytes());
}

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
  std::string nodes;
  for (const auto& node : reply.nodes()) nodes += (nodes.empty() ? "" : ", ") + NodeJson(node);
  return absl::StrFormat(
      "{\"job_id\": %s, \"state\": %s, \"missing\": %s, \"failure\": %s, \"epoch\": %d, "
      "\"catalogue_version\": %d, \"tensors\": %d, \"keys\": %d, \"nodes\": [%s]}",
      Quoted(reply.config().job_id()), Quoted(reply.state()), Quoted(reply.missing()),
      Quoted(reply.failure().message()), reply.epoch(), reply.catalogue_version(), reply.tensors(),
      reply.keys(), nodes);
}

}  // namespace bdn
