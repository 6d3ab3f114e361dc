#include "common/cluster/status_fetch.h"

#include <grpcpp/grpcpp.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "common/base/ids.h"
#include "common/base/status.h"
#include "common/cluster/control_channel.h"
#include "common/cluster/control_messages.h"
#include "common/cluster/listen_address.h"
#include "proto/control.grpc.pb.h"

namespace bdn {
namespace {

namespace wire = bandoneon::control;

using Json = nlohmann::ordered_json;

// JSON is UTF-8, and names here are bytes of no known encoding: each becomes the character of its
// number, as in Latin-1.
std::string AsUtf8(const std::string& bytes) {
  std::string text;
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x80) {
      text += c;
    } else {
      text += static_cast<char>(0xc0 | (byte >> 6));
      text += static_cast<char>(0x80 | (byte & 0x3f));
    }
  }
  return text;
}

Json HeldJson(const wire::HeldBytes& held) {
  return {
      {"total", Read(held).total()}, {"weights", held.weights()},     {"replicas", held.replicas()},
      {"moments", held.moments()},   {"residuals", held.residuals()}, {"sums", held.sums()},
      {"waiting", held.waiting()},   {"replies", held.replies()},     {"values", held.values()}};
}

Json StagesJson(const StageCounts& counts, Role role) {
  Json json = Json::object();
  for (const Stage stage : role == Role::kServer ? ServerStages() : WorkerStages()) {
    const StageCount& count = counts[stage];
    json[std::string(StageName(stage))] = {{"items", count.items},
                                           {"bytes", count.bytes},
                                           {"wall_ns", count.wall_ns},
                                           {"cpu_ns", count.cpu_ns}};
  }
  return json;
}

absl::StatusOr<Json> NodeJson(const wire::StatusReply::Node& node) {
  const auto role = static_cast<Role>(node.info().role());
  BDN_ASSIGN_OR_RETURN(const StageCounts stages, Read(node.stages()));
  Json json = {{"role", RoleName(role)},
               {"rank", node.info().rank()},
               {"node", node.info().id()},
               {"host", AsUtf8(node.info().host())},
               {"processes", node.info().processes()},
               {"address", AsUtf8(node.info().data_address())},
               {"listen_address", AsUtf8(node.info().listen_address())},
               {"left", node.left()},
               {"step", node.step()},
               {"bytes_sent", node.bytes_sent()},
               {"bytes_received", node.bytes_received()},
               {"seconds_since_heard", node.seconds_since_heard()},
               {"keys", node.keys()},
               {"key_bytes", node.key_bytes()},
               {"server_bytes", node.server_bytes()}};
  if (node.has_held()) json["held"] = HeldJson(node.held());
  json["stages"] = StagesJson(stages, role);
  return json;
}

absl::StatusOr<Json> StatusJson(const wire::StatusReply& status) {
  Json nodes = Json::array();
  for (const auto& node : status.nodes()) {
    BDN_ASSIGN_OR_RETURN(Json json, NodeJson(node));
    nodes.push_back(std::move(json));
  }
  return Json{{"job_id", AsUtf8(status.config().job_id())},
              {"state", AsUtf8(status.state())},
              {"missing", AsUtf8(status.missing())},
              {"failure", AsUtf8(status.failure().message())},
              {"epoch", status.epoch()},
              {"catalogue_version", status.catalogue_version()},
              {"tensors", status.tensors()},
              {"keys", status.keys()},
              {"nodes", std::move(nodes)}};
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
  constexpr bool kAsciiOnly = true;
  const absl::StatusOr<Json> json = StatusJson(reply);
  if (!json.ok()) {
    return Internal("the status of the scheduler at %s is not understood: %s", address,
                    json.status().message());
  }
  return json->dump(-1, ' ', kAsciiOnly);
}

}  // namespace bdn
