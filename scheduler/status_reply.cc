#include "scheduler/status_reply.h"

#include <map>
#include <string>

#include "common/cluster/control_messages.h"
#include "proto/control.pb.h"

namespace bdn {
namespace {

const char* StateName(Job::State state) {
  switch (state) {
    case Job::State::kWaiting:
      return "waiting";
    case Job::State::kRunning:
      return "running";
    case Job::State::kFailed:
      return "failed";
    case Job::State::kDone:
      return "done";
  }
  return "unknown";
}

void WriteSuspects(const Job& job, absl::Time now, bandoneon::control::StatusReply* reply) {
  for (const auto& [id, suspect] : job.watch().suspects()) {
    bandoneon::control::Suspect* added = reply->add_suspects();
    added->set_node(suspect.finding.who.node);
    added->set_host(suspect.finding.who.host);
    added->set_kind(std::string(SuspectKindName(suspect.finding.kind)));
    added->set_seconds(suspect.finding.seconds);
    added->set_share(suspect.finding.share);
    added->set_since_seconds_ago(absl::ToDoubleSeconds(now - suspect.since));
    added->set_sentence(SentenceOf(suspect, now));
  }
  for (const HeatRow& row : job.watch().heat()) {
    bandoneon::control::Heat* added = reply->add_heat();
    added->set_node(row.who.node);
    added->set_host(row.who.host);
    for (const HeatCell& cell : row.cells) {
      bandoneon::control::Heat::Cell* place = added->add_cells();
      place->set_kind(std::string(SuspectKindName(cell.kind)));
      place->set_seconds(cell.seconds);
      place->set_share(cell.share);
    }
  }
}

}  // namespace

void WriteHistory(const Job& job, absl::Time now, bandoneon::control::History* message) {
  if (job.history() == nullptr) return;
  const History& history = *job.history();
  // -1 says that the speed is not known yet.
  message->set_steps_per_second(history.StepsPerSecond().value_or(-1));
  for (const std::string& text : job.Waits()) message->add_waits(text);
  for (const History::Window& window : history.Windows()) {
    bandoneon::control::History::Window* added = message->add_windows();
    added->set_node(window.node);
    added->set_steps(window.steps);
    for (const uint64_t wall_ns : window.wall_ns) added->add_wall_ns(wall_ns);
  }
  for (const auto& [name, curve] : history.curves()) {
    bandoneon::control::History::Curve* added = message->add_curves();
    added->set_name(name);
    added->set_steps_per_point(curve.steps_per_point());
    for (const Curve::Point& point : curve.Points()) {
      bandoneon::control::History::Point* place = added->add_points();
      place->set_step(point.step);
      place->set_value(point.value);
    }
  }
  for (const QualityGroup& group : history.Quality(Role::kWorker)) {
    Write(group, message->add_pushes());
  }
  for (const QualityGroup& group : history.Quality(Role::kServer)) {
    Write(group, message->add_replies());
  }
  for (const History::Event& event : history.events()) {
    bandoneon::control::History::Event* added = message->add_events();
    added->set_seconds_ago(absl::ToDoubleSeconds(now - event.when));
    added->set_kind(event.kind);
    added->set_text(event.text);
  }
}

// Writes the tables of all servers that are in the job.
void WriteTables(const Job& job, bandoneon::control::StatusReply* reply) {
  std::map<std::string, TableCounts> tables;
  for (const auto& [id, member] : job.table().members()) {
    if (member.left || !member.evicted.ok()) continue;
    for (const TableCounts& of : member.progress.tables) {
      const auto [all, is_first] = tables.try_emplace(of.table, of);
      if (!is_first) all->second += of;
    }
  }
  for (const auto& [name, counts] : tables) Write(counts, reply->add_tables());
}

void WriteStatus(const Job& job, absl::Time now, bandoneon::control::StatusReply* reply) {
  Write(job.config(), reply->mutable_config());
  reply->set_state(StateName(job.state()));
  if (job.state() == Job::State::kWaiting) reply->set_missing(job.MissingNodes());
  Write(job.failure(), reply->mutable_failure());
  if (job.table().membership() != nullptr) reply->set_epoch(job.table().membership()->epoch);
  const Declarations& declared = job.declarations();
  reply->set_catalogue_version(declared.version().catalogue);
  reply->set_tensors(declared.totals().tensors);
  reply->set_keys(declared.totals().keys);
  for (const auto& [id, member] : job.table().members()) {
    bandoneon::control::StatusReply::Node* node = reply->add_nodes();
    Write(member.info, node->mutable_info());
    node->set_left(member.left);
    node->set_lost(!member.evicted.ok());
    node->set_candidate(member.is_candidate);
    node->set_step(member.progress.step);
    node->set_bytes_sent(member.progress.bytes_sent);
    node->set_bytes_received(member.progress.bytes_received);
    if (member.info.role == Role::kServer) Write(member.progress.held, node->mutable_held());
    if (member.progress.rows != RowCounts()) Write(member.progress.rows, node->mutable_rows());
    node->set_keys_rebuilding(member.progress.keys_rebuilding);
    node->set_connections(member.progress.work.connections);
    Write(member.progress.stages, node->mutable_stages());
    node->set_seconds_since_heard(absl::ToDoubleSeconds(now - member.last_heard));
    const Placer::Load load = job.LoadOf(id);
    node->set_keys(load.keys);
    node->set_key_bytes(load.key_bytes);
    node->set_server_bytes(load.server_bytes);
  }
  WriteTables(job, reply);
  WriteSuspects(job, now, reply);
}

}  // namespace bdn
