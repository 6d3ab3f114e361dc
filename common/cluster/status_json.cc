#include "common/cluster/status_json.h"

#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "common/base/ids.h"
#include "common/base/status.h"
#include "common/cluster/control_messages.h"
#include "proto/control.pb.h"

namespace bdn {
namespace {

namespace wire = bandoneon::control;

using Json = nlohmann::ordered_json;

// Makes UTF-8, as JSON wants it, of a name, whose bytes are of no known encoding: each becomes the
// character of its number, as in Latin-1.
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
  return {{"total", Read(held).total()},   {"weights", held.weights()},
          {"replicas", held.replicas()},   {"moments", held.moments()},
          {"residuals", held.residuals()}, {"sums", held.sums()},
          {"waiting", held.waiting()},     {"replies", held.replies()},
          {"values", held.values()},       {"rows", held.rows()}};
}

Json RowsJson(const wire::RowCounts& rows) {
  return {{"held", rows.held()},
          {"added", rows.added()},
          {"removed", rows.removed()},
          {"not_admitted", rows.not_admitted()}};
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

// Returns the node's first endpoint of a network; an empty one where there is none.
Endpoint NetworkEndpointOf(const wire::NodeInfo& info) {
  for (const wire::Endpoint& each : info.endpoints()) {
    if (!each.bound().empty()) return {each.scheme(), each.address(), {}, each.bound()};
  }
  return {};
}

absl::StatusOr<Json> NodeJson(const wire::StatusReply::Node& node) {
  const auto role = static_cast<Role>(node.info().role());
  BDN_ASSIGN_OR_RETURN(const StageCounts stages, Read(node.stages()));
  const Endpoint network = NetworkEndpointOf(node.info());
  Json json = {{"role", RoleName(role)},
               {"rank", node.info().rank()},
               {"node", node.info().id()},
               {"host", AsUtf8(node.info().host())},
               {"processes", node.info().processes()},
               {"address", AsUtf8(UrlOf(network))},
               {"listen_address", AsUtf8(BoundUrlOf(network))},
               {"left", node.left()},
               {"lost", node.lost()},
               {"candidate", node.candidate()},
               {"step", node.step()},
               {"bytes_sent", node.bytes_sent()},
               {"bytes_received", node.bytes_received()},
               {"seconds_since_heard", node.seconds_since_heard()},
               {"keys", node.keys()},
               {"key_bytes", node.key_bytes()},
               {"server_bytes", node.server_bytes()},
               {"keys_rebuilding", node.keys_rebuilding()},
               {"connections", node.connections()}};
  if (node.has_held()) json["held"] = HeldJson(node.held());
  if (node.has_rows()) json["rows"] = RowsJson(node.rows());
  json["stages"] = StagesJson(stages, role);
  return json;
}

Json WindowJson(const wire::History::Window& window, Role role) {
  Json wall_ns = Json::object();
  for (const Stage stage : role == Role::kServer ? ServerStages() : WorkerStages()) {
    const int place = static_cast<int>(stage);
    wall_ns[std::string(StageName(stage))] =
        place < window.wall_ns_size() ? window.wall_ns(place) : 0;
  }
  return {{"node", window.node()}, {"steps", window.steps()}, {"wall_ns", std::move(wall_ns)}};
}

Json CurveJson(const wire::History::Curve& curve) {
  Json points = Json::array();
  for (const wire::History::Point& point : curve.points()) {
    // JSON has no number for NaN and infinity.
    points.push_back(Json::array(
        {point.step(), std::isfinite(point.value()) ? Json(point.value()) : Json(nullptr)}));
  }
  return {{"name", AsUtf8(curve.name())},
          {"steps_per_point", curve.steps_per_point()},
          {"points", std::move(points)}};
}

using WireQuality = google::protobuf::RepeatedPtrField<wire::QualityGroup>;

absl::StatusOr<Json> QualityJson(const WireQuality& message) {
  BDN_ASSIGN_OR_RETURN(const std::vector<QualityGroup> groups, ReadQuality(message));
  Json all = Json::array();
  for (const QualityGroup& group : groups) {
    Json json = {{"tensors", group.name()}};
    json.update(Json::parse(ToJson(group.figures)));
    all.push_back(std::move(json));
  }
  return all;
}

absl::StatusOr<Json> HistoryJson(const wire::StatusReply& status) {
  const wire::History& history = status.history();
  std::map<uint32_t, Role> roles;
  for (const auto& node : status.nodes()) {
    roles[node.info().id()] = static_cast<Role>(node.info().role());
  }
  Json waits = Json::array();
  for (const std::string& text : history.waits()) waits.push_back(AsUtf8(text));
  Json windows = Json::array();
  for (const auto& window : history.windows()) {
    windows.push_back(WindowJson(window, roles[window.node()]));
  }
  Json curves = Json::array();
  for (const auto& curve : history.curves()) curves.push_back(CurveJson(curve));
  Json events = Json::array();
  for (const auto& event : history.events()) {
    events.push_back({{"seconds_ago", event.seconds_ago()},
                      {"kind", AsUtf8(event.kind())},
                      {"text", AsUtf8(event.text())}});
  }
  BDN_ASSIGN_OR_RETURN(Json pushes, QualityJson(history.pushes()));
  BDN_ASSIGN_OR_RETURN(Json replies, QualityJson(history.replies()));
  // A negative rate means that none is known yet.
  const double rate = history.steps_per_second();
  return Json{{"steps_per_second", rate < 0 ? Json(nullptr) : Json(rate)},
              {"waits", std::move(waits)},
              {"windows", std::move(windows)},
              {"curves", std::move(curves)},
              {"quality", {{"pushes", std::move(pushes)}, {"replies", std::move(replies)}}},
              {"events", std::move(events)}};
}

}  // namespace

absl::StatusOr<std::string> StatusToJson(const wire::StatusReply& status) {
  Json nodes = Json::array();
  for (const auto& node : status.nodes()) {
    BDN_ASSIGN_OR_RETURN(Json json, NodeJson(node));
    nodes.push_back(std::move(json));
  }
  Json json = {{"job_id", AsUtf8(status.config().job_id())},
               {"state", AsUtf8(status.state())},
               {"missing", AsUtf8(status.missing())},
               {"failure", AsUtf8(status.failure().message())},
               {"epoch", status.epoch()},
               {"catalogue_version", status.catalogue_version()},
               {"tensors", status.tensors()},
               {"keys", status.keys()},
               {"nodes", std::move(nodes)},
               {"tables", Json::array()},
               {"suspects", Json::array()},
               {"heat", Json::array()}};
  for (const wire::TableCounts& table : status.tables()) {
    Json counts = {{"table", AsUtf8(table.table())}};
    counts.update(RowsJson(table.rows()));
    counts.update({{"bytes", table.bytes()}, {"updates", table.updates()}});
    json["tables"].push_back(std::move(counts));
  }
  for (const wire::Suspect& suspect : status.suspects()) {
    json["suspects"].push_back({{"node", suspect.node()},
                                {"host", AsUtf8(suspect.host())},
                                {"kind", AsUtf8(suspect.kind())},
                                {"seconds", suspect.seconds()},
                                {"share", suspect.share()},
                                {"since_seconds_ago", suspect.since_seconds_ago()},
                                {"sentence", AsUtf8(suspect.sentence())}});
  }
  for (const wire::Heat& heat : status.heat()) {
    Json cells = Json::object();
    for (const wire::Heat::Cell& cell : heat.cells()) {
      cells[AsUtf8(cell.kind())] = {{"seconds", cell.seconds()}, {"share", cell.share()}};
    }
    json["heat"].push_back(
        {{"node", heat.node()}, {"host", AsUtf8(heat.host())}, {"kinds", std::move(cells)}});
  }
  if (status.has_history()) {
    BDN_ASSIGN_OR_RETURN(json["history"], HistoryJson(status));
  }
  constexpr bool kAsciiOnly = true;
  return json.dump(-1, ' ', kAsciiOnly);
}

}  // namespace bdn
