#include "server/server.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "common/base/descriptors.h"
#include "common/base/fault_point.h"
#include "common/base/log.h"
#include "common/base/memory_reserve.h"
#include "common/base/status.h"
#include "common/cluster/job_recorder.h"
#include "common/cluster/membership_history.h"
#include "common/telemetry/history_file.h"
#include "common/wire/headers.h"
#include "server/key_estimate.h"
#include "server/key_snapshot.h"

namespace bdn {
namespace {

constexpr auto kCounter = Metric::Kind::kCounter;
constexpr auto kGauge = Metric::Kind::kGauge;
// The families in which exporters show the metrics: push is from workers, pull is to them.
constexpr Family kRefusals = {"refusals", kCounter,
                              "So many frames and connections were refused or dropped, by reason.",
                              "reason"};
constexpr Family kFrames = {
    "frames", kCounter,
    "So many frames were exchanged with workers: push is from them, pull is to them.", "direction"};
constexpr Family kTraffic = {
    "traffic_bytes", kCounter,
    "So many bytes were exchanged with workers, headers included: push is from them, pull is to "
    "them.",
    "direction"};
constexpr Family kPayload = {
    "payload_bytes", kCounter,
    "So many bytes of payload were in pushes that joined a round (push), and in rounds' replies to "
    "each worker (pull).",
    "direction"};
constexpr Family kPlain = {
    "uncompressed_bytes", kCounter,
    "The payloads of payload_bytes stand for so many bytes of float32 values.", "direction"};
constexpr Family kQueued = {"queued_bytes", kGauge,
                            "So many bytes are waiting to be sent to workers."};
constexpr Family kHeld = {"held_bytes", kGauge,
                          "The server holds so many bytes for keys, by purpose.", "purpose"};
constexpr Family kHeldMost = {
    "held_most_bytes", kGauge,
    "The shards held at most so many bytes at once, each at a time of its own, added up."};
constexpr Family kHeldLimit = {
    "held_limit_bytes", kGauge,
    "Setting max-bytes has this value: what the server may hold for keys."};
constexpr Family kPool = {
    "pool_bytes", kGauge,
    "The pool of replies and sums has so many bytes in blocks, by whether they are in use.",
    "purpose"};
constexpr Family kRankWaits = {
    "rank_wait_seconds", kCounter,
    "Rounds have waited so long for this rank after their first push; only the ranks most waited "
    "for are shown, and only with stage-times.",
    "rank"};

using Stats = Server::Stats;
constexpr MetricRow<Stats> kMetrics[] = {
    {{"pushes", kCounter, "So many pushes were added to a round."},
     [](const Stats& now) { return now.shards.pushes; }},
    {{"rounds", kCounter, "So many rounds were closed with a result."},
     [](const Stats& now) { return now.shards.rounds; }},
    {{"rounds_nonfinite", kCounter,
      "So many of the rounds with a result had a sum or a gradient that was not finite."},
     [](const Stats& now) { return now.shards.rounds_nonfinite; }},
    {{"rounds_failed", kCounter, "So many rounds were closed with an error."},
     [](const Stats& now) { return now.shards.rounds_failed; }},
    {{"pushes_repeated", kCounter, "So many pushes were in their open round already."},
     [](const Stats& now) { return now.shards.duplicates; }},
    {{"replies_cached", kCounter,
      "So many requests about a closed step were answered by the reply that was kept."},
     [](const Stats& now) { return now.shards.cached_replies; }},
    {{"probes", kCounter, "So many probes were received."},
     [](const Stats& now) { return now.shards.probes; }},
    {{"keys_rebuilding", kGauge,
      "So many keys have come from servers that were lost, and are not whole yet."},
     [](const Stats& now) { return now.shards.rebuilding; }},
    {{"keys_rebuilt", kCounter,
      "So many keys were rebuilt on this server, because theirs was lost."},
     [](const Stats& now) { return now.shards.rebuilt; }},
    {{"keys_estimated", kCounter,
      "So many of the rebuilt keys were estimated, because a worker was lost with their server."},
     [](const Stats& now) { return now.shards.estimated; }},
    {{"scheduler_silence_seconds", kGauge,
      "The scheduler has answered last so many seconds ago; it is asked at every heartbeat."},
     [](const Stats& now) { return now.silent_seconds; }},
    {{"frames_refused", kCounter, "So many frames were answered with an error.", &kRefusals,
      "error"},
     [](const Stats& now) { return now.shards.refused; }},
    {{"frames_unauthenticated", kCounter,
      "So many frames were dropped because their connection had not said hello.", &kRefusals,
      "unauthenticated"},
     [](const Stats& now) { return now.frames_unauthenticated; }},
    {{"frames_forged", kCounter,
      "So many frames were dropped because their sender was not the node of their connection.",
      &kRefusals, "forged"},
     [](const Stats& now) { return now.frames_forged; }},
    {{"frames_dropped", kCounter,
      "So many frames were dropped because no room was left for them to wait for their shard.",
      &kRefusals, "queue_full"},
     [](const Stats& now) { return now.frames_dropped; }},
    {{"frames_malformed", kCounter, "So many frames were received that could not be read.",
      &kRefusals, "malformed"},
     [](const Stats& now) { return now.transport.frames_malformed; }},
    {{"frames_received", kCounter, "So many frames were received from workers.", &kFrames, "push"},
     [](const Stats& now) { return now.transport.frames_received; }},
    {{"frames_sent", kCounter, "So many frames were sent to workers.", &kFrames, "pull"},
     [](const Stats& now) { return now.transport.frames_sent; }},
    {{"bytes_received", kCounter, "So many bytes were received from workers, headers included.",
      &kTraffic, "push"},
     [](const Stats& now) { return now.transport.bytes_received; }},
    {{"bytes_sent", kCounter, "So many bytes were sent to workers, headers included.", &kTraffic,
      "pull"},
     [](const Stats& now) { return now.transport.bytes_sent; }},
    {{"payload_bytes_pushed", kCounter,
      "So many bytes of payload were in pushes that were added to a round.", &kPayload, "push"},
     [](const Stats& now) { return now.shards.bytes_pushed; }},
    {{"plain_bytes_pushed", kCounter,
      "The payloads of payload_bytes_pushed stand for so many bytes of float32 values.", &kPlain,
      "push"},
     [](const Stats& now) { return now.shards.bytes_pushed_plain; }},
    {{"payload_bytes_replied", kCounter,
      "So many bytes of payload were in rounds' replies to each worker.", &kPayload, "pull"},
     [](const Stats& now) { return now.shards.bytes_replied; }},
    {{"plain_bytes_replied", kCounter,
      "The payloads of payload_bytes_replied stand for so many bytes of float32 values.", &kPlain,
      "pull"},
     [](const Stats& now) { return now.shards.bytes_replied_plain; }},
    {{"connections_refused", kCounter,
      "So many connections were ended, as strangers', before they had brought a frame.", &kRefusals,
      "stranger"},
     [](const Stats& now) { return now.transport.connections_refused; }},
    {{"connections_cut", kCounter,
      "So many connections were cut because they broke the rules, read nothing, or left the "
      "roster.",
      &kRefusals, "cut"},
     [](const Stats& now) { return now.transport.connections_cut; }},
    {{"connections_open", kGauge, "So many connections of workers are open."},
     [](const Stats& now) { return now.transport.connections_open; }},
    {{"bytes_queued", kGauge, "So many bytes are waiting to be sent to workers.", &kQueued},
     [](const Stats& now) { return now.transport.bytes_queued; }},
    {{"bytes_weights", kGauge,
      "The server holds so many bytes of weights of keys with an update rule.", &kHeld, "weights"},
     [](const Stats& now) { return now.held.weights; }},
    {{"bytes_replicas", kGauge,
      "The server holds so many bytes of replicas: the workers' weights, where replies are "
      "differences.",
      &kHeld, "replicas"},
     [](const Stats& now) { return now.held.replicas; }},
    {{"bytes_moments", kGauge, "The server holds so many bytes of moments of update rules.", &kHeld,
      "moments"},
     [](const Stats& now) { return now.held.moments; }},
    {{"bytes_residuals", kGauge,
      "The server holds so many bytes that replies still owe by error feedback.", &kHeld,
      "residuals"},
     [](const Stats& now) { return now.held.residuals; }},
    {{"bytes_sums", kGauge,
      "The server holds so many bytes of sums for steps that some workers have not pushed yet.",
      &kHeld, "sums"},
     [](const Stats& now) { return now.held.sums; }},
    {{"bytes_waiting", kGauge,
      "The server holds so many bytes of pushes that are not added to their sum yet.", &kHeld,
      "waiting"},
     [](const Stats& now) { return now.held.waiting; }},
    {{"bytes_replies", kGauge,
      "The server holds so many bytes of replies until the next step, other than those that are "
      "weights.",
      &kHeld, "replies"},
     [](const Stats& now) { return now.held.replies; }},
    {{"bytes_values", kGauge, "The server holds so many bytes of values of broadcasts.", &kHeld,
      "values"},
     [](const Stats& now) { return now.held.values; }},
    {{"bytes_rows", kGauge, "The server holds so many bytes of rows of tables, with their moments.",
      &kHeld, "rows"},
     [](const Stats& now) { return now.held.rows; }},
    {{"rows", kGauge, "The server holds so many rows of tables."},
     [](const Stats& now) { return now.shards.rows; }},
    {{"rows_updated", kCounter, "So many times a row was updated by the rule of its table."},
     [](const Stats& now) { return now.shards.rows_updated; }},
    {{"rows_fetched", kCounter,
      "So many rows were told to workers that fetched them, besides those in replies."},
     [](const Stats& now) { return now.shards.rows_fetched; }},
    {{"rows_added", kCounter, "So many new rows were stored."},
     [](const Stats& now) { return now.shards.rows_added; }},
    {{"rows_removed", kCounter,
      "So many rows were removed because their table was full, or because of their age."},
     [](const Stats& now) { return now.shards.rows_removed; }},
    {{"rows_not_admitted", kCounter,
      "So many gradients were dropped because their rows were not admitted yet."},
     [](const Stats& now) { return now.shards.rows_not_admitted; }},
    {{"bytes_held_most", kGauge,
      "The shards held at most so many bytes at once, each at a time of its own, added up.",
      &kHeldMost},
     [](const Stats& now) { return now.most_held; }},
    {{"bytes_pool_used", kGauge,
      "The pool of replies and sums has so many bytes in blocks that are in use.", &kPool, "used"},
     [](const Stats& now) { return now.pool.bytes_used; }},
    {{"bytes_pool_idle", kGauge,
      "The pool of replies and sums has so many bytes in blocks that wait for their next use.",
      &kPool, "idle"},
     [](const Stats& now) { return now.pool.bytes_idle; }},
};

// Returns whether two TCP addresses have different ports.
bool IsOfAnotherPort(std::string_view listened, std::string_view advertised) {
  constexpr std::string_view kTcp = "tcp://";
  if (!listened.starts_with(kTcp) || !advertised.starts_with(kTcp)) return false;
  return listened.substr(listened.rfind(':')) != advertised.substr(advertised.rfind(':'));
}

// Returns whether a frame is the result of a round. A reply that acknowledges an init has neither
// payload nor flag.
bool IsResult(const Frame& frame) {
  return frame.header.type == FrameType::kReply &&
         (!frame.payload.empty() || frame.header.flags != 0);
}

// Says at which network address a server listens, if it listens at one.
void LogListening(const std::vector<Endpoint>& endpoints) {
  const Endpoint* const network = NetworkEndpoint(endpoints);
  if (network == nullptr) return;
  const std::string bound = BoundUrlOf(*network);
  LogInfo("listening on %s, %s; workers connect to %s; joining", bound,
          LinkSecurityName(network->security), UrlOf(*network));
  if (IsOfAnotherPort(bound, UrlOf(*network))) {
    LogWarning(
        "%s is advertised, whose port is not the one listened at, %s: workers reach this "
        "server only where something forwards it",
        UrlOf(*network), bound);
  }
}

}  // namespace

Server::Server(const Options& options, Registry* telemetry, ControlPlane* control,
               Transport* transport)
    : options_(options),
      telemetry_(telemetry),
      control_(control),
      transport_(transport),
      stages_(MakeStageTimes(options.stage_clock)),
      pool_(transport->memory()),
      budget_(options.max_bytes),
      waiting_(options.max_bytes_waiting),
      replies_(transport, options.max_bytes_in_flight, stages_.get()),
      quality_{.options = options.quality, .what = "reply", .table = {}} {}

Server::~Server() {
  // The order lets nothing run on a member that is already destroyed: first the readers of the
  // metrics end, then the callbacks of the control plane, then the transport's, which post to
  // shards. The shards come last, and what their last pieces of work have sent is ended by another
  // Join.
  metrics_.clear();
  if (recorder_ != nullptr) recorder_->SetLinks(nullptr);
  Stop();
  control_->Close();
  replies_.Close();
  transport_->Close();
  transport_->Join();
  shards_.clear();
  transport_->Join();  // ends what the shards still sent
}

absl::Status Server::Start() {
  transport_->Start([this](ConnectionId from, Frame frame) { OnFrame(from, std::move(frame)); },
                    [this](ConnectionId connection) { OnGone(connection); });
  JoinRequest join = options_.join;
  join.role = Role::kServer;
  BDN_ASSIGN_OR_RETURN(join.endpoints, transport_->Listen(options_.listen));
  // Before the join, which shows the endpoints to all nodes.
  if (!options_.advertise.empty()) Advertise(options_.advertise, &join.endpoints);
  join.public_key = transport_->public_key();
  LogListening(join.endpoints);
  if (options_.on_listening != nullptr) options_.on_listening();
  BDN_ASSIGN_OR_RETURN(const JoinResult joined, control_->Join(join, options_.join_timeout));
  // The server needs a descriptor for a connection of each worker. A transport without a key never
  // leaves the process, and needs none.
  if (!join.public_key.empty()) {
    BDN_RETURN_IF_ERROR(
        CheckDescriptors(static_cast<uint64_t>(joined.config.num_workers), "this server"));
  }
  BDN_ASSIGN_OR_RETURN(history_, HistoryFile::Open(options_.history_file,
                                                   absl::StrFormat("server-%d", joined.rank)));
  if (history_ != nullptr) {
    history_->Write("begin",
                    HistoryText("role", "server") + HistoryText("job", joined.config.job_id) +
                        absl::StrFormat(",\"rank\":%d,\"node\":%d", joined.rank, joined.node));
  }
  recorder_ = OpenRecorder(options_.recorder, join, joined);
  if (stages_ != nullptr) stages_->RecordWith(recorder_.get());
  waits_ = std::make_unique<RankWaits>(static_cast<size_t>(joined.config.num_workers));
  for (int i = 0; i < std::max(1, options_.num_shards); ++i) {
    shards_.push_back(std::make_unique<ShardRunner>(
        ShardOptions{.self = joined.node,
                     .run_seed = joined.config.run_seed,
                     .pool = &pool_,
                     .budget = &budget_,
                     .stages = stages_.get(),
                     .waits = waits_.get(),
                     .quality = &quality_,
                     .history = history_.get(),
                     .tells_roots = joined.config.replay_steps > 0,
                     .on_failure = [this](const absl::Status& why) { Fail(why); },
                     .needs_checksums = [this] { return transport_->needs_checksums(); }},
        [this](NodeId to, Frame frame) { SendTo(to, std::move(frame)); }));
  }
  if (joined.config.stuck_timeout > absl::ZeroDuration()) {
    control_->ReportWaits([this] { return ReadWaits(); });
  }
  control_->ReportTables([this] { return ReadTables(); });
  {
    MutexLock lock(&mu_);
    node_ = joined.node;
    data_secret_ = joined.data_secret;
    shard_map_ = ShardMap(shards_.size());
    sessions_ = std::make_unique<SessionTable>(joined.config.job_id, joined.data_secret);
  }
  if (recorder_ != nullptr) recorder_->SetLinks([this] { return Links(); });
  keys_survive_ = joined.config.replay_steps > 0;
  workers_may_go_ = joined.config.MayHaveVacantRanks();
  num_workers_ = static_cast<size_t>(joined.config.num_workers);
  // Before Watch, so that this call runs beside no callback of the control plane.
  OnMembership(joined.membership);
  control_->Watch({
      .on_membership = [this](auto membership) { OnMembership(std::move(membership)); },
      .on_catalogue = [this](const SharedDelta& delta) { OnCatalogue(*delta); },
      .on_leaving = [this](const std::vector<Rank>& ranks) { OnLeaving(ranks); },
      .on_failure = [this](const absl::Status& status) { Finish(status); },
      .on_finished = [this] { Finish(absl::OkStatus()); },
      .on_dump = [this](const DumpOrder& order) { return RecordingFor(order, recorder_.get()); },
  });
  // Only now, as the metrics read members that are constant from here on.
  AddMetrics();
  LogInfo("server %d of job '%s' is ready (node %d)", joined.rank, joined.config.job_id,
          joined.node);
  return absl::OkStatus();
}

absl::Status Server::Wait() {
  MutexLock lock(&mu_);
  while (!finished_) finished_changed_.Wait(&mu_);
  return result_;
}

void Server::Stop() { Finish(absl::OkStatus()); }

void Server::Finish(const absl::Status& status) {
  {
    MutexLock lock(&mu_);
    if (finished_) return;
    finished_ = true;
    result_ = status;
  }
  if (recorder_ != nullptr) {
    recorder_->Sample();  // The workers end their connections now.
    if (!status.ok()) recorder_->WriteOnTrouble(std::string(status.message()));
  }
  finished_changed_.SignalAll();
}

void Server::OnFrame(ConnectionId from, Frame frame) {
  if (frame.header.type == FrameType::kHello) {
    Own(&frame);
    return OnHello(from, frame);
  }
  // Taken before the lock, so that the time of waiting for it counts as time in the queue.
  const StageSpan came(stages_.get());
  absl::StatusOr<NodeId> sender;
  ShardMap::Place place;
  {
    MutexLock lock(&mu_);
    if (sessions_ == nullptr) return;  // the job has not begun: workers greet again
    sender = sessions_->NodeOf(from);
    if (!sender.ok()) {
      ++frames_unauthenticated_;
    } else if (*sender != frame.header.sender) {
      ++frames_forged_;
      return;
    } else {
      sessions_->OnHeard(from, frame.header.key);
    }
    if (sender.ok() && frame.header.type == FrameType::kPush) {
      // Before the push is posted: it is to be handled with the priority that it brings.
      shard_map_.NotePush(frame.header.key, frame.header.step, frame.header.priority);
    }
    // The shards may not have the key yet that another shard is about to get.
    const bool is_early = frame.header.epoch > complete_.epoch ||
                          frame.header.catalogue_version > complete_.catalogue;
    if (sender.ok() && is_early && !shard_map_.Has(frame.header.key)) {
      sender = Unavailable("epoch %d and catalogue version %d are not here yet", frame.header.epoch,
                           frame.header.catalogue_version);
    }
    place = shard_map_.PlaceOf(frame.header.key);
  }
  if (!sender.ok()) return Refuse(from, frame.header, sender.status());
  const uint64_t bytes = waiting_.Add(*sender, frame);
  // Dropped without an answer, as if the network had lost it: its worker probes, and sends it
  // again.
  if (bytes == 0) return;
  shards_[place.shard]->Post(
      [this, bytes, sender = *sender, frame = std::move(frame), came](auto& owner) mutable {
        waiting_.Remove(sender, bytes);
        if (frame.header.type == FrameType::kPush) {
          came.End(Stage::kQueue, frame.payload.size(),
                   {.key = frame.header.key, .step = frame.header.step, .peer = sender});
        }
        // A push's payload may stay lent, as DenseKey::CheckPush decides. Other payloads are kept,
        // or read more than once, so the shard needs a copy that no peer can change.
        if (frame.header.type != FrameType::kPush) Own(&frame);
        return owner.OnFrame(sender, frame);
      },
      place.priority);
}

void Server::OnHello(ConnectionId from, const Frame& frame) {
  const PublicKey key = transport_->KeyOf(from);
  // If the connection has gone since, no public key is left against which its hello could be
  // checked.
  if (key.empty() && transport_->security() != LinkSecurity::kOpen) return;
  absl::Status status = CheckPayload(frame);
  const absl::StatusOr<Hello> hello = DecodeHello(frame.payload.span());
  if (status.ok()) status = hello.status();
  NodeId self;
  {
    MutexLock lock(&mu_);
    if (sessions_ == nullptr) return;  // as in OnFrame
    self = node_;
    if (status.ok()) status = sessions_->OnHello(from, key, *hello);
  }
  if (!status.ok()) {
    refusals_log_.Warning("hello refused: %s", Printable(std::string(status.message())));
    return Refuse(from, frame.header, status);
  }
  const Buffer greeting = EncodeHello({.node = self, .role = Role::kServer});
  transport_->Send(from, MakeFrame(HelloHeader(self), greeting), [](const absl::Status&) {});
}

void Server::OnGone(ConnectionId connection) {
  MutexLock lock(&mu_);
  if (sessions_ != nullptr) sessions_->Forget(connection);
}

void Server::Refuse(ConnectionId to, const FrameHeader& request, const absl::Status& status) {
  FrameHeader header = AnswerTo(request, FrameType::kError);
  {
    MutexLock lock(&mu_);
    header.sender = node_;
  }
  transport_->Send(to, MakeFrame(header, EncodeError(status)), [](const absl::Status&) {});
}

void Server::SendTo(NodeId node, Frame frame) {
  absl::StatusOr<ConnectionId> connection = NotFound("");
  int32_t priority;
  {
    MutexLock lock(&mu_);
    connection = sessions_->ConnectionOf(node, frame.header.key);
    if (IsResult(frame)) sessions_->OnResult(node, frame.header.key);
    priority = shard_map_.PlaceOf(frame.header.key).priority;
  }
  if (frame.header.type == FrameType::kReply) {
    ReportProgress(frame.header.step);
  } else if (frame.header.type == FrameType::kRebuild) {
    ReportProgress(0);
  }
  // A node without a connection asks again when it has one.
  if (!connection.ok()) return;
  // Only results are long and of a priority; short answers need not queue behind them.
  if (IsResult(frame)) return replies_.Send(*connection, node, priority, std::move(frame));
  transport_->Send(*connection, std::move(frame), [](const absl::Status&) {});
}

void Server::ReportProgress(Step step) {
  const TransportStats traffic = transport_->stats();
  HeldBytes held;
  ShardStats shards;
  for (const auto& shard : shards_) {
    held += shard->held();
    shards += shard->stats();
  }
  NodeProgress progress = {.bytes_sent = traffic.bytes_sent,
                           .bytes_received = traffic.bytes_received,
                           .held = held,
                           .rows = {.held = shards.rows,
                                    .added = shards.rows_added,
                                    .removed = shards.rows_removed,
                                    .not_admitted = shards.rows_not_admitted},
                           .keys_rebuilding = shards.rebuilding};
  {
    MutexLock lock(&mu_);
    if (step > highest_step_) ++ended_steps_;
    progress.step = highest_step_ = std::max(highest_step_, step);
    progress.ended = ended_steps_;
  }
  control_->ReportProgress(progress);
}

void Server::OnMembership(std::shared_ptr<const Membership> membership) {
  WriteEpoch(*membership, history_.get());
  Admission admission;
  {
    MutexLock lock(&mu_);
    sessions_->SetMembership(membership);
    admission.secret = data_secret_;
  }
  for (const NodeInfo& worker : membership->workers) admission.keys.push_back(worker.public_key);
  // Once all workers have left, the list is empty, and admitting nobody would cut connections on
  // which the last replies are still under way.
  if (!admission.keys.empty()) transport_->Admit(std::move(admission));
  FaultPoint(membership->epoch > 1 ? "epoch.some" : "admit.some");
  {
    MutexLock lock(&late_mu_);
    for (Late& late : late_) late = {};
  }
  const bool is_later = membership_->epoch > 0;
  const bool has_newcomer =
      is_later && std::ranges::any_of(membership->workers, [this](const NodeInfo& worker) {
        return membership_->Find(worker.id) == nullptr;
      });
  membership_ = membership;
  // Slots of servers that are lost may have come to this one.
  std::vector<const Known*> gained;
  if (!membership->moved.empty()) {
    MutexLock lock(&mu_);
    for (const auto& [key, known] : known_) {
      const bool is_mine = membership->OwnerOf(key, known.home).server == node_;
      if (is_mine && !shard_map_.Has(key)) gained.push_back(&known);
    }
  }
  std::vector<ShardNews> news(shards_.size());
  const PlacementVersion complete{membership->epoch, catalogue_version_};
  if (auto status = TakeKeys(gained, complete, &news); !status.ok()) return Fail(status);
  if (!gained.empty()) {
    LogInfo("%d keys of a lost server come here in epoch %d", gained.size(), membership->epoch);
  }
  // In one piece of work: frames of the new epoch must find the keys.
  for (size_t i = 0; i < shards_.size(); ++i) {
    shards_[i]->Post([membership, added = std::move(news[i].added)](ServerShard& owner) {
      Sends sends = owner.SetMembership(membership);
      for (const ShardNews::Added& each : added) owner.AddKey(each.plan, each.is_rebuilt);
      return sends;
    });
  }
  if (!has_newcomer) return;
  // Only now: a newcomer that is told of it connects at once.
  const absl::Status told = control_->AcknowledgePlacement({membership->epoch, 0});
  if (!told.ok()) LogWarning("epoch %d: %s", membership->epoch, told.message());
}

void Server::Fail(const absl::Status& status) {
  {
    MutexLock lock(&mu_);
    if (finished_) return;
  }
  (void)control_->Leave(status, absl::ZeroDuration());
  Finish(status);
}

void Server::OnCatalogue(const CatalogueDelta& delta) {
  const uint32_t version = delta.version.catalogue;
  if (absl::Status status = TakeDelta(delta); !status.ok()) {
    LogError("catalogue version %d: %s", version, status.message());
    // A server that cannot hold its keys would leave all workers waiting: it ends the job with the
    // reason.
    return Fail(status);
  }
  const absl::Status status = control_->AcknowledgePlacement(delta.version);
  if (!status.ok()) LogWarning("catalogue version %d: %s", version, status.message());
}

void Server::OnLeaving(const std::vector<Rank>& ranks) {
  // SetLeaving replaces a shard's list, so each shard gets the whole set.
  leaving_.insert(ranks.begin(), ranks.end());
  FaultPoint("leave.some");
  const std::vector<Rank> all(leaving_.begin(), leaving_.end());
  for (const auto& shard : shards_) {
    shard->Post([all](ServerShard& owner) { return owner.SetLeaving(all); });
  }
}

absl::Status Server::TakeDelta(const CatalogueDelta& delta) {
  std::vector<Known> fresh;
  NodeId self;
  {
    MutexLock lock(&mu_);
    self = node_;
    for (size_t i = 0; i < delta.keys.size(); ++i) {
      const KeyEntry& entry = delta.keys[i];
      const bool is_mine = membership_->OwnerOf(entry.key, delta.owners[i]).server == node_;
      if (shard_map_.Has(entry.key) || (!is_mine && !keys_survive_)) continue;
      const uint32_t first = entry.segments.at(0).tensor - delta.first_tensor;
      fresh.push_back(
          {entry, delta.tensors.at(first).name, delta.owners[i], delta.version.epoch, {}});
      if (entry.kind != KeyKind::kRows) continue;
      for (const KeySegment& segment : entry.segments) {
        fresh.back().tables.push_back(delta.tensors.at(segment.tensor - delta.first_tensor));
      }
    }
  }
  std::vector<const Known*> mine;
  for (const Known& each : fresh) {
    if (membership_->OwnerOf(each.entry.key, each.home).server == self) mine.push_back(&each);
  }
  std::vector<ShardNews> news(shards_.size());
  catalogue_version_ = delta.version.catalogue;
  BDN_RETURN_IF_ERROR(TakeKeys(mine, {membership_->epoch, catalogue_version_}, &news));
  if (keys_survive_) {
    for (Known& each : fresh) known_[each.entry.key] = std::move(each);
    for (const Key key : delta.retired) known_.erase(key);
  }
  {
    MutexLock lock(&mu_);
    for (const Key key : delta.retired) {
      if (!shard_map_.Has(key)) continue;  // another server's
      news[shard_map_.PlaceOf(key).shard].retired.push_back(key);
      shard_map_.Remove(key);
    }
  }
  // Blocks until the shards have the keys: the acknowledgement that follows lets workers push them.
  GiveToShards(delta.version.catalogue, news);
  if (delta.retired.empty()) return absl::OkStatus();
  for (const Key key : delta.retired) {
    const auto cost = costs_.extract(key);
    if (!cost.empty()) declared_bytes_ -= cost.mapped();
  }
  // Reported now for the next heartbeat, because no exchange may follow that would report it. A
  // shard counts its bytes after each piece of work, so an empty piece of work behind the others
  // makes sure that they are counted.
  OnAllShards([](size_t, ServerShard&) { return Sends(); });
  ReportProgress(0);
  return absl::OkStatus();
}

absl::Status Server::TakeKeys(const std::vector<const Known*>& keys, PlacementVersion complete,
                              std::vector<ShardNews>* news) {
  Plans own;
  for (const Known* const key : keys) {
    BDN_RETURN_IF_ERROR(CheckIsNoLostRows(*key));
    BDN_ASSIGN_OR_RETURN(own.emplace_back(), MakeKeyPlan(key->entry, key->tensor, key->tables));
  }
  // All checks come before the first change. Reserve is the last check, because it counts the keys.
  for (const auto& plan : own) BDN_RETURN_IF_ERROR(CheckFrame(*plan));
  BDN_RETURN_IF_ERROR(Reserve(own));
  for (const auto& plan : own) MemoryReserve::ExpectMessage(plan->MaxPayloadBytes());
  if (std::ranges::any_of(own, [](const auto& plan) { return plan->rows != nullptr; })) {
    MutexLock lock(&counted_mu_);
    has_tables_ = true;
  }
  MutexLock lock(&mu_);
  complete_ = complete;
  for (size_t i = 0; i < own.size(); ++i) {
    const Known& key = *keys[i];
    const size_t shard = shard_map_.Add(own[i]->entry);
    if (recorder_ != nullptr) recorder_->Name(own[i]->entry.key.value, own[i]->name);
    // A key that was placed after its home was lost has never been anywhere else.
    const bool is_rebuilt = membership_->OwnerOf(key.entry.key, key.home).since > key.placed_in;
    (*news)[shard].added.push_back({std::move(own[i]), is_rebuilt});
  }
  return absl::OkStatus();
}

absl::Status Server::CheckIsNoLostRows(const Known& key) const {
  const bool is_lost = membership_->OwnerOf(key.entry.key, key.home).since > key.placed_in;
  if (key.entry.kind != KeyKind::kRows || !is_lost) return absl::OkStatus();
  return FailedPrecondition(
      "table '%s': the server that held bucket %d of %d is lost, and rows are not made again on "
      "another server: begin the job anew",
      key.tensor, key.entry.key.partition(), key.entry.buckets);
}

absl::Status Server::CheckFrame(const KeyPlan& plan) const {
  const uint64_t bytes = plan.MaxPayloadBytes();
  if (plan.rows != nullptr && bytes > options_.max_frame_bytes) {
    return ResourceExhausted(
        "table '%s': frames about rows take up to %d bytes, setting max-frame-bytes allows %d: "
        "raise it on every server",
        plan.name, bytes, options_.max_frame_bytes);
  }
  if (bytes > options_.max_frame_bytes) {
    return ResourceExhausted(
        "tensor '%s': its frames take up to %d bytes, setting max-frame-bytes allows %d: raise it "
        "on every server, or lower partition-bytes of the scheduler",
        plan.name, bytes, options_.max_frame_bytes);
  }
  uint64_t snapshot = keys_survive_ ? MaxSnapshotBytes(plan) : 0;
  if (keys_survive_ && workers_may_go_) snapshot = std::max(snapshot, MaxGivenBytes(plan));
  if (snapshot > options_.max_frame_bytes) {
    return ResourceExhausted(
        "tensor '%s': snapshots of what servers hold of it, by which it survives its server, take "
        "up to %d bytes, setting max-frame-bytes allows %d: raise it on every server, or lower "
        "partition-bytes of the scheduler, or have it begin the job with replay-steps=0",
        plan.name, snapshot, options_.max_frame_bytes);
  }
  return absl::OkStatus();
}

absl::Status Server::Reserve(const Plans& plans) {
  uint64_t more = 0;
  std::vector<uint64_t> costs;
  for (const auto& plan : plans) {
    // Costs depend on the number of workers, so they are kept as they were counted, to be
    // subtracted when a key is retired.
    const RankGroup& ranks = plan->entry.ranks;
    const size_t workers =
        ranks.is_all() ? num_workers_ : std::min(num_workers_, ranks.ranks().size());
    more += costs.emplace_back(plan->CostFor(workers).in_order());
  }
  if (more > options_.max_bytes - std::min(options_.max_bytes, declared_bytes_)) {
    return ResourceExhausted(
        "the tensors declared cost this server %d bytes of memory with %d workers, and those "
        "before %d; setting max-bytes allows %d: start more servers, or raise it",
        more, num_workers_, declared_bytes_, options_.max_bytes);
  }
  declared_bytes_ += more;
  for (size_t i = 0; i < plans.size(); ++i) costs_[plans[i]->entry.key] = costs[i];
  return absl::OkStatus();
}

void Server::GiveToShards(uint32_t catalogue_version, const std::vector<ShardNews>& news) {
  OnAllShards([&](size_t i, ServerShard& owner) {
    Sends sends;
    for (const ShardNews::Added& each : news[i].added) owner.AddKey(each.plan, each.is_rebuilt);
    for (const Key key : news[i].retired) {
      for (Outgoing& send : owner.RemoveKey(key)) sends.push_back(std::move(send));
    }
    owner.SetCatalogueVersion(catalogue_version);
    return sends;
  });
}

void Server::OnAllShards(const std::function<Sends(size_t, ServerShard&)>& work) {
  Mutex mu;
  CondVar all_done;
  size_t pending = shards_.size();
  for (size_t i = 0; i < shards_.size(); ++i) {
    shards_[i]->Post([&, i](ServerShard& owner) {
      Sends sends = work(i, owner);
      // Signalled under the lock: `mu` and `all_done` are on the caller's stack, and are gone once
      // it wakes.
      MutexLock lock(&mu);
      if (--pending == 0) all_done.Signal();
      return sends;
    });
  }
  MutexLock lock(&mu);
  while (pending > 0) all_done.Wait(&mu);
}

std::vector<LinkTotals> Server::Links() const {
  std::vector<std::pair<NodeId, std::vector<ConnectionId>>> of_workers;
  {
    MutexLock lock(&mu_);
    of_workers = sessions_->Connections();
  }
  std::vector<LinkTotals> links;
  for (const auto& [worker, connections] : of_workers) {
    links.push_back(TotalsOf(worker, connections, *transport_));
  }
  return links;
}

std::vector<NodeWait> Server::ReadWaits() {
  std::vector<NodeWait> waits;
  {
    MutexLock lock(&late_mu_);
    late_.resize(shards_.size());
    for (Late& late : late_) {
      if (std::exchange(late.is_fresh, false)) waits = LongestWaits(waits, late.ranks.Waits());
    }
  }
  for (size_t i = 0; i < shards_.size(); ++i) {
    shards_[i]->Post([this, i](ServerShard& owner) {
      const std::vector<OpenRound> rounds = owner.OpenRounds();
      MutexLock lock(&late_mu_);
      late_[i].ranks.Look(rounds, log_clock_.Now());
      late_[i].is_fresh = true;
      return Sends();
    });
  }
  return waits;
}

bool Server::HasTables() const {
  MutexLock lock(&counted_mu_);
  return has_tables_;
}

std::vector<TableCounts> Server::ReadTables() {
  std::map<std::string, TableCounts> tables;
  {
    MutexLock lock(&counted_mu_);
    // A server without tables does not wake its shards.
    if (!has_tables_) return {};
    counted_.resize(shards_.size());
    for (const std::vector<TableCounts>& of_shard : counted_) {
      for (const TableCounts& of : of_shard) {
        const auto [all, is_first] = tables.try_emplace(of.table, of);
        if (!is_first) all->second += of;
      }
    }
  }
  // A shard may be in the middle of a round, for which no heartbeat waits: its counts go with the
  // next one.
  for (size_t i = 0; i < shards_.size(); ++i) {
    shards_[i]->Post([this, i](ServerShard& owner) {
      std::vector<TableCounts> counts = owner.CountTables();
      MutexLock lock(&counted_mu_);
      counted_[i] = std::move(counts);
      return Sends();
    });
  }
  std::vector<TableCounts> told;
  size_t name_bytes = 0;
  for (auto& [name, of] : tables) {
    name_bytes += name.size();
    if (told.size() == kMostTablesTold || name_bytes > kMostNameBytesTold) break;
    told.push_back(std::move(of));
  }
  return told;
}

void Server::AddMetrics() {
  metrics_.push_back(telemetry_->Add(kMetrics, [this] { return stats(); }));
  metrics_.push_back(telemetry_->AddFamily(&kHeldLimit, [this] {
    return std::vector<Series>{{"", static_cast<double>(options_.max_bytes)}};
  }));
  if (options_.quality.every > 0) {
    for (auto& source : AddQuality(&quality_.table, telemetry_)) {
      metrics_.push_back(std::move(source));
    }
    control_->ReportQuality([this] { return quality_.table.Groups(); });
  }
  if (stages_ == nullptr) return;
  for (auto& source : AddStages(ServerStages(), stages_.get(), telemetry_)) {
    metrics_.push_back(std::move(source));
  }
  metrics_.push_back(telemetry_->AddFamily(&kRankWaits, [this] {
    std::vector<Series> all;
    for (size_t rank = 0; rank < waits_->size(); ++rank) {
      all.push_back({absl::StrFormat("%d", rank), static_cast<double>(waits_->ns_of(rank)) * 1e-9});
    }
    KeepLargest(&all);
    return all;
  }));
  control_->ReportStages([this] { return stages_->Read(); });
  control_->ReportWork([this] {
    WorkCounts counts;
    ReadMachineTimes(&counts);
    if (waits_->size() > kMostPeerWaits) return counts;
    for (size_t rank = 0; rank < waits_->size(); ++rank) {
      counts.peers.push_back(
          {static_cast<Rank>(rank), waits_->rounds_of(rank), waits_->ns_of(rank)});
    }
    return counts;
  });
}

Server::Stats Server::stats() const {
  Stats stats;
  for (const auto& shard : shards_) {
    stats.shards += shard->stats();
    stats.held += shard->held();
    stats.most_held += shard->most_held();
  }
  stats.pool = pool_.stats();
  stats.transport = transport_->stats();
  stats.transport.bytes_queued += replies_.bytes_waiting();
  stats.frames_dropped = waiting_.dropped();
  if (stages_ != nullptr) stats.stages = stages_->Read();
  stats.silent_seconds = static_cast<uint64_t>(absl::ToInt64Seconds(control_->SchedulerSilence()));
  MutexLock lock(&mu_);
  stats.frames_unauthenticated = frames_unauthenticated_;
  stats.frames_forged = frames_forged_;
  return stats;
}

}  // namespace bdn
