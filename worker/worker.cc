#include "worker/worker.h"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <utility>

#include "common/base/descriptors.h"
#include "common/base/fault_point.h"
#include "common/base/log.h"
#include "common/base/status.h"
#include "common/cluster/job_recorder.h"
#include "common/cluster/membership_history.h"
#include "common/cluster/table_spec.h"
#include "worker/link_states.h"
#include "worker/scattered_bytes.h"

namespace bdn {
namespace {

// The time in which the scheduler is told why this node goes.
constexpr absl::Duration kLeaveTimeout = absl::Seconds(2);

// The least time in which servers may answer the first hello, if joining has taken all the time
// that there was.
constexpr absl::Duration kLeastTimeToGreet = absl::Seconds(5);

// Uncompressed tensors are worth a warning if they have at least this part of all bytes: a
// hundredth.
constexpr uint64_t kWorthSaying = 100;

constexpr auto kCounter = Metric::Kind::kCounter;
constexpr auto kGauge = Metric::Kind::kGauge;
constexpr Family kTraffic = {
    "traffic_bytes", kCounter,
    "So many bytes were exchanged with servers, headers included: push is to them, pull is from "
    "them.",
    "direction"};
constexpr Family kFrames = {
    "frames", kCounter,
    "So many frames were exchanged with servers: push is to them, pull is from them.", "direction"};
constexpr Family kRefusals = {"refusals", kCounter, "So many frames were dropped, by reason.",
                              "reason"};
using Counts = Worker::Counts;
constexpr MetricRow<Counts> kMetrics[] = {
    {{"rank", kGauge, "This worker has this rank."},
     [](const Counts& now) { return static_cast<uint64_t>(now.rank); }},
    {{"size", kGauge, "The job has so many workers."},
     [](const Counts& now) { return static_cast<uint64_t>(now.size); }},
    {{"step", kGauge, "This step is the highest that has ended here."},
     [](const Counts& now) { return now.highest_step; }},
    {{"tensors", kGauge, "So many tensors are declared and not retired, broadcasts included."},
     [](const Counts& now) { return now.tensors; }},
    {{"tickets_done", kCounter, "So many exchanges of whole tensors have ended."},
     [](const Counts& now) { return now.tickets_ended; }},
    {{"bytes_pushed", kCounter, "So many bytes were sent to servers, headers included.", &kTraffic,
      "push"},
     [](const Counts& now) { return now.traffic.bytes_sent; }},
    {{"bytes_pulled", kCounter, "So many bytes were received from servers, headers included.",
      &kTraffic, "pull"},
     [](const Counts& now) { return now.traffic.bytes_received; }},
    {{"frames_sent", kCounter, "So many frames were sent to servers.", &kFrames, "push"},
     [](const Counts& now) { return now.traffic.frames_sent; }},
    {{"frames_received", kCounter, "So many frames were received from servers.", &kFrames, "pull"},
     [](const Counts& now) { return now.traffic.frames_received; }},
    {{"frames_malformed", kCounter, "So many frames were received that could not be read.",
      &kRefusals, "malformed"},
     [](const Counts& now) { return now.traffic.frames_malformed; }},
    {{"frames_dropped", kCounter, "So many answers were dropped because nobody waited for them.",
      &kRefusals, "unasked"},
     [](const Counts& now) { return now.requests.frames_dropped; }},
    {{"probes_sent", kCounter, "So many probes were sent because an answer was late."},
     [](const Counts& now) { return now.requests.probes_sent; }},
    {{"resends", kCounter, "So many requests were sent again because a server had lost them."},
     [](const Counts& now) { return now.requests.resends; }},
    {{"reconnects", kCounter, "So many connections were made anew because a server was silent."},
     [](const Counts& now) { return now.requests.reconnects; }},
    {{"server_connections", kGauge, "So many connections to servers are open or being made."},
     [](const Counts& now) { return now.connections; }},
    {{"keys_recovered", kCounter, "So many keys of lost servers are whole again on others."},
     [](const Counts& now) { return now.recovery.recoveries; }},
    {{"pushes_repeated", kCounter,
      "So many answered pushes were sent again, because their server was lost."},
     [](const Counts& now) { return now.recovery.pushes_repeated; }},
    {{"log_bytes", kGauge,
      "So many bytes of answered pushes and of last replies are kept for a server that may be "
      "lost."},
     [](const Counts& now) { return now.recovery.log_bytes; }},
    {{"snapshot_bytes", kGauge,
      "So many bytes of snapshots of servers' keys are kept for a server that may be lost."},
     [](const Counts& now) { return now.recovery.snapshot_bytes; }},
    {{"scheduler_silence_seconds", kGauge,
      "The scheduler has answered last so many seconds ago; it is asked at every heartbeat."},
     [](const Counts& now) { return now.silent_seconds; }},
};

// Returns after how many steps a snapshot of the key is fetched; 0: its server keeps nothing from
// one round to the next. The pushes in between are kept, of which there are at most two gradients'
// bytes where they are compressed, and two pushes where not.
uint32_t SnapshotEvery(const DeclaredKey& key, uint32_t most) {
  if (key.entry.kind != KeyKind::kDense) return 0;
  const KeyCodecs& codecs = key.link.codecs;
  if (codecs.reply == ReplyKind::kAggregate && !codecs.pull_has_memory()) return 0;
  const uint64_t bytes = std::max<uint64_t>(1, codecs.push->MaxEncodedBytes());
  const uint64_t fit = 2 * KeyBytes(key.entry) / bytes;
  return static_cast<uint32_t>(std::clamp<uint64_t>(fit, 2, std::max<uint32_t>(most, 2)));
}

}  // namespace

// ---- Life

absl::StatusOr<std::unique_ptr<Worker>> Worker::Create(const Options& options, const Clock* clock,
                                                       Registry* telemetry,
                                                       std::unique_ptr<ControlPlane> control,
                                                       std::unique_ptr<Transport> transport) {
  std::unique_ptr<Worker> worker(
      new Worker(options, clock, std::move(control), std::move(transport)));
  BDN_RETURN_IF_ERROR(worker->Start(telemetry));
  return worker;
}

Worker::Worker(const Options& options, const Clock* clock, std::unique_ptr<ControlPlane> control,
               std::unique_ptr<Transport> transport)
    : options_(options),
      clock_(clock),
      control_(std::move(control)),
      transport_(std::move(transport)),
      stages_(MakeStageTimes(options.stage_clock)),
      quality_{.options = options.quality, .what = "push", .table = {}},
      pool_(transport_->memory()) {}

absl::Status Worker::Join() {
  JoinRequest join = options_.join;
  join.role = Role::kWorker;
  join.public_key = transport_->public_key();
  BDN_ASSIGN_OR_RETURN(joined_, control_->Join(join, options_.join_timeout));
  const std::vector<int>& processes = joined_.processes;
  first_process_ = std::accumulate(processes.begin(), processes.begin() + joined_.rank, 0);
  num_processes_ = std::accumulate(processes.begin(), processes.end(), 0);
  const std::vector<Rank> present = ProcessesBut(joined_.membership->vacant);
  presence_ = Presence{static_cast<int>(present.size()), present.empty() ? 0 : present.front()};
  is_candidate_ = joined_.is_candidate;
  // The worker needs two descriptors for each server: a socket and its connection. A transport
  // without a key never leaves the process, and needs none.
  if (!join.public_key.empty()) {
    const absl::Status status =
        CheckDescriptors(2 * static_cast<uint64_t>(joined_.config.num_servers), "this worker");
    if (!status.ok()) {  // leaves with the reason, for all nodes to hear
      (void)control_->Leave(status, kLeaveTimeout);
      return status;
    }
  }
  {
    MutexLock lock(tensors_.mutex());
    tensors_.participation().rank = joined_.rank;
    tensors_.participation().is_candidate = joined_.is_candidate;
  }
  {
    MutexLock lock(&membership_mu_);
    membership_ = joined_.membership;
    is_connected_ = !joined_.is_candidate;
  }
  BDN_ASSIGN_OR_RETURN(history_, HistoryFile::Open(options_.history_file,
                                                   absl::StrFormat("worker-%d", joined_.rank)));
  if (history_ != nullptr) {
    history_->Write("begin",
                    HistoryText("role", "worker") + HistoryText("job", joined_.config.job_id) +
                        absl::StrFormat(",\"rank\":%d,\"node\":%d", joined_.rank, joined_.node));
    WriteEpoch(*joined_.membership, history_.get());
  }
  recorder_ = OpenRecorder(options_.recorder, join, joined_);
  if (stages_ != nullptr) stages_->RecordWith(recorder_.get());
  return absl::OkStatus();
}

void Worker::MakeParts() {
  // The order of these follows their use: each part borrows those before it.
  executor_ = MakePoolExecutor(options_.num_threads);
  requests_ = std::make_unique<RequestRunner>(
      RequestTable::Options{.self = joined_.node,
                            .rank = joined_.rank,
                            .processes = joined_.processes,
                            .job_id = joined_.config.job_id,
                            .token = joined_.data_secret,
                            .probe_interval = options_.probe_interval,
                            .timeout = options_.wait_timeout},
      transport_.get(), clock_, stages_.get(), history_.get(), options_.connections);
  exchanges_ = std::make_unique<Exchanges>(
      ExchangePipeline::Options{.context = {.run_seed = joined_.config.run_seed,
                                            .rank = joined_.rank,
                                            .pool = &pool_,
                                            .quality = &quality_},
                                .max_bytes_in_flight = options_.max_bytes_in_flight,
                                .stages = stages_.get()},
      &tensors_, requests_.get(), executor_.get(), clock_,
      Exchanges::Callbacks{.over =
                               [this](Step highest, uint64_t ended) {
                                 const TransportStats traffic = transport_->stats();
                                 control_->ReportProgress({.step = highest,
                                                           .bytes_sent = traffic.bytes_sent,
                                                           .bytes_received = traffic.bytes_received,
                                                           .ended = ended});
                               },
                           .late = [this](const std::string& why) { NoteTrouble(why); },
                           .stuck = [this](const std::string& reason) { (void)Abort(reason); },
                           .failed =
                               [this](const absl::Status& status) {
                                 NoteTrouble(std::string(status.message()));
                                 if (options_.failed) options_.failed(status);
                               }});
  server_requests_ = std::make_unique<ServerRequests>(&tensors_, requests_.get(), clock_);
  rows_ = std::make_unique<RowExchanges>(
      RowDraws{.run_seed = joined_.config.run_seed, .rank = joined_.rank}, &tensors_,
      requests_.get(), executor_.get(), exchanges_->tickets(),
      [this](Step step) { exchanges_->NoteStep(step); });
  tensors_.set_on_removed([this](Key key) {
    requests_->RetireKey(key);
    rows_->OnRemoved(key);
  });
}

absl::Status Worker::Start(Registry* telemetry) {
  const absl::Time join_deadline = clock_->Now() + options_.join_timeout;
  BDN_RETURN_IF_ERROR(Join());
  MakeParts();
  // Only now, because frames may come at once, and requests_ takes them.
  transport_->Start(
      [this](ConnectionId from, Frame frame) { requests_->OnFrame(from, std::move(frame)); });
  // Before Watch, whose first event may be the same membership again; it is then ignored.
  if (!joined_.is_candidate) BDN_RETURN_IF_ERROR(requests_->SetMembership(joined_.membership));
  FaultPoint("admit.some");
  control_->Watch({
      .on_membership = [this](auto membership) { OnMembership(std::move(membership)); },
      .on_failure = [this](const absl::Status& status) { exchanges_->Fail(status); },
      .on_candidates =
          [this](int ready) {
            const int before = candidates_.exchange(ready);
            if (ready == before || !options_.presence_changed) return;
            options_.presence_changed(presence(), ready);
          },
      .on_finished = [] {},
      .on_dump = [this](const DumpOrder& order) { return RecordingFor(order, recorder_.get()); },
  });
  BeginReports(telemetry);
  // Servers do not know a candidate yet.
  if (joined_.is_candidate) {
    LogInfo("worker %d joins a job that runs, and waits to be taken in", joined_.rank);
    return absl::OkStatus();
  }
  // A firewall or a wrong address shows here, with a clear error, and not as a push that waits for
  // half an hour.
  const absl::Status reached =
      requests_->AwaitServers(std::max(join_deadline, clock_->Now() + kLeastTimeToGreet));
  if (!reached.ok()) (void)Abort(std::string(reached.message()));
  return reached;
}

void Worker::BeginReports(Registry* telemetry) {
  const JobConfig& config = joined_.config;
  const bool may_go_on = config.replay_steps > 0 || config.min_workers > 0;
  if (may_go_on && config.link_timeout > absl::ZeroDuration()) {
    control_->ReportWaits([this] { return requests_->Unheard(); });
  }
  metrics_.push_back(telemetry->Add(kMetrics, [this] { return counts(); }));
  if (options_.quality.every > 0) {
    for (auto& source : AddQuality(&quality_.table, telemetry)) {
      metrics_.push_back(std::move(source));
    }
    control_->ReportQuality([this] { return quality_.table.Groups(); });
  }
  if (stages_ != nullptr) {
    for (auto& source : AddStages(WorkerStages(), stages_.get(), telemetry)) {
      metrics_.push_back(std::move(source));
    }
    control_->ReportStages([this] { return stages_->Read(); });
  }
  control_->ReportWork([this] {
    WorkCounts counts = {.program = program_clock_.Read(),
                         .peers = requests_->ReplyWaits(),
                         .open_requests = requests_->OpenRequests(),
                         .connections = requests_->Connections()};
    ReadMachineTimes(&counts);
    return counts;
  });
  if (recorder_ != nullptr) recorder_->SetLinks([this] { return requests_->Links(); });
}

void Worker::Close() {
  bool in_peace;
  {
    MutexLock lock(tensors_.mutex());
    in_peace = tensors_.participation().left || !tensors_.participation().failed.ok();
  }
  // Local waits are ended first, so that they end with Cancelled, and not with the failure that
  // this end is to the other workers.
  const absl::Status closed = Cancelled("the worker is being closed");
  if (server_requests_ != nullptr) exchanges_->Fail(closed);  // else Start did not come so far
  if (joined_.node != 0 && !in_peace) {
    (void)control_->Leave(Cancelled("it was closed before it left the job"), absl::ZeroDuration());
  }
  control_->Close();
}

Worker::~Worker() {
  // The order ends each user before the things that it uses: readers of the metrics, waits and the
  // control plane, the timer, the transport, whose callbacks use requests_ and executor_, and last
  // the executor.
  metrics_.clear();
  if (recorder_ != nullptr) recorder_->SetLinks(nullptr);
  Close();
  if (server_requests_ == nullptr) return;
  requests_->Stop();
  transport_->Close();
  transport_->Join();
  executor_.reset();   // runs the queued work, which ends in errors now
  transport_->Join();  // ends what that work has sent
}

void Worker::OnMembership(std::shared_ptr<const Membership> membership) {
  WriteEpoch(*membership, history_.get());
  const std::vector<Rank> present = ProcessesBut(membership->vacant);
  // A roster of nobody has no first rank.
  const Presence now = {static_cast<int>(present.size()),
                        present.empty() ? presence().first_rank : present.front()};
  const Presence before = presence_.exchange(now);
  // A return is said as loudly as the loss, which it makes good.
  if (now.size != before.size) {
    LogWarning("the job goes on with %d of %d workers", now.size, num_processes_);
  }
  if (membership->epoch > 1) FaultPoint("epoch.some");
  // Before the requests are sent anew for the next epoch, whose results must come later.
  if (now != before && options_.presence_changed) {
    options_.presence_changed(now, candidates_.load(std::memory_order_relaxed));
  }
  {
    MutexLock lock(&membership_mu_);
    if (!is_connected_) {  // Enter sets it
      membership_ = std::move(membership);
      return membership_changed_.SignalAll();
    }
  }
  const absl::Status status = requests_->SetMembership(membership);
  if (!status.ok()) return exchanges_->Fail(status);
  // Only now: whoever waits for the epoch pushes in it then.
  MutexLock lock(&membership_mu_);
  membership_ = std::move(membership);
  membership_changed_.SignalAll();
}

Rank Worker::WorkerOf(Rank process) const {
  Rank worker = 0;
  for (Rank left = process; left >= joined_.processes[worker]; ++worker) {
    left -= joined_.processes[worker];
  }
  return worker;
}

Presence Worker::PresenceAmong(const RankGroup& group) const {
  if (group.is_all()) return presence_.load(std::memory_order_relaxed);
  Presence among = {.size = 0, .first_rank = -1};
  MutexLock lock(&membership_mu_);
  for (const Rank rank : group.ranks()) {
    if (membership_->IsVacant(rank)) continue;
    if (among.size++ == 0) among.first_rank = rank;
  }
  return among;
}

absl::Status Worker::CheckTakesPart() const {
  MutexLock lock(tensors_.mutex());
  return tensors_.participation().Check();
}

absl::StatusOr<std::vector<Rank>> Worker::Meet(const std::string& name, absl::Duration timeout) {
  BDN_RETURN_IF_ERROR(CheckTakesPart());
  std::vector<Rank> vacant;
  if (is_candidate()) {
    MutexLock lock(&membership_mu_);
    vacant = membership_->vacant;
  } else {
    BDN_ASSIGN_OR_RETURN(vacant, control_->Meet(name, timeout));
  }
  std::vector<Rank> present = ProcessesBut(vacant);
  // Each worker of a job with groups is one process.
  const RankGroup among = GroupInName(name);
  std::erase_if(present, [&](Rank rank) { return !among.Has(rank); });
  return present;
}

// ---- Workers that join a job that runs

absl::StatusOr<std::vector<Rank>> Worker::Boundary(absl::Duration timeout) {
  const absl::Time deadline = clock_->Now() + timeout;
  BDN_RETURN_IF_ERROR(CheckTakesPart());
  BDN_RETURN_IF_ERROR(exchanges_->CheckIdle());
  BDN_ASSIGN_OR_RETURN(const Met met, control_->MeetAtBoundary(timeout));
  if (is_candidate()) {
    if (!std::ranges::binary_search(met.newcomers, joined_.rank)) {
      return Internal("the scheduler's answer lacks this worker, which waited to be taken in");
    }
    const absl::Status entered = Enter(met, deadline);
    if (!entered.ok()) {
      // From now on the others wait for it in each step.
      (void)control_->Leave(Unavailable("%s", entered.message()), absl::ZeroDuration());
      return entered;
    }
  } else {
    // A push of the epoch before could meet a server that does not know the newcomers yet, which
    // would close the step without them.
    BDN_RETURN_IF_ERROR(AwaitEpoch(met.epoch, deadline));
  }
  std::vector<Rank> others;
  for (Rank rank = 0; rank < static_cast<Rank>(joined_.processes.size()); ++rank) {
    if (!std::ranges::binary_search(met.newcomers, rank)) others.push_back(rank);
  }
  return ProcessesBut(others);
}

absl::Status Worker::AwaitEpoch(Epoch epoch, absl::Time deadline) {
  // The stream of events tells the membership, and may be behind a call's answer.
  constexpr absl::Duration kPoll = absl::Milliseconds(100);
  deadline = std::max(deadline, clock_->Now() + kLeastTimeToGreet);
  for (;;) {
    BDN_RETURN_IF_ERROR(CheckTakesPart());
    MutexLock lock(&membership_mu_);
    if (membership_->epoch >= epoch) return absl::OkStatus();
    if (clock_->Now() >= deadline) {
      return DeadlineExceeded("the scheduler has not told the membership of epoch %d", epoch);
    }
    clock_->WaitUntil(&membership_changed_, &membership_mu_,
                      std::min(deadline, clock_->Now() + kPoll));
  }
}

absl::Status Worker::Enter(const Met& met, absl::Time deadline) {
  FaultPoint("admit.some");
  // The others stand until this worker has reached all servers, or goes.
  const absl::Duration most = std::max(joined_.config.link_timeout, kLeastTimeToGreet);
  deadline = std::min(deadline, clock_->Now() + most);
  BDN_RETURN_IF_ERROR(AwaitEpoch(met.epoch, deadline));
  // OnMembership leaves the requests alone until is_connected_, so no two memberships are set at
  // once, and no newer one is overtaken.
  for (bool is_latest = false; !is_latest;) {
    std::shared_ptr<const Membership> latest;
    {
      MutexLock lock(&membership_mu_);
      latest = membership_;
    }
    BDN_RETURN_IF_ERROR(requests_->SetMembership(latest));
    MutexLock lock(&membership_mu_);
    is_latest = is_connected_ = latest == membership_;
  }
  deadline = std::max(deadline, clock_->Now() + kLeastTimeToGreet);
  BDN_RETURN_IF_ERROR(requests_->AwaitServers(deadline));
  std::vector<Key> keys;
  {
    MutexLock lock(tensors_.mutex());
    for (const auto& [key, exchange] : tensors_.keys()) keys.push_back(key);
  }
  BDN_RETURN_IF_ERROR(BeginWhereServersStand(keys, deadline));
  entered_in_ = met.epoch;
  {
    MutexLock lock(tensors_.mutex());
    tensors_.participation().is_candidate = false;
  }
  is_candidate_.store(false, std::memory_order_release);
  LogInfo("worker %d was taken into the job, in epoch %d", joined_.rank, met.epoch);
  RetireAsTakenIn();
  return absl::OkStatus();
}

void Worker::RetireAsTakenIn() {
  std::vector<uint32_t> retired;
  {
    MutexLock lock(tensors_.mutex());
    for (const uint32_t id : std::exchange(retired_before_, {})) {
      const Tensor* const tensor = tensors_.Find(id);
      // The program may have declared it again.
      if (tensor != nullptr && !tensor->is_declared) retired.push_back(id);
    }
  }
  // In the table the tensors stay, as others of the job that this worker has not declared: it may
  // share their keys.
  if (!retired.empty()) control_->Retire(retired);
}

absl::Status Worker::BeginWhereServersStand(std::span<const Key> keys, absl::Time deadline) {
  BDN_ASSIGN_OR_RETURN(const auto positions, server_requests_->AskPositions(keys, deadline));
  MutexLock lock(tensors_.mutex());
  for (const auto& [key, position] : positions) {
    KeyExchange* const exchange = tensors_.FindKey(key);
    if (exchange == nullptr) continue;  // it was retired meanwhile
    exchange->BeginAt(position);
    requests_->BeginAt(key, position);
    if (exchange->key().entry.kind == KeyKind::kBroadcast) continue;
    for (const KeySegment& segment : exchange->key().entry.segments) {
      Step& pushed = tensors_.at(segment.tensor).pushed;
      if (pushed != 0 && pushed != position.step) {
        return Aborted("tensor '%s' stands at step %d at one server, and at step %d at another",
                       tensors_.at(segment.tensor).declaration.name, pushed, position.step);
      }
      pushed = position.step;
    }
  }
  return absl::OkStatus();
}

std::vector<Rank> Worker::ProcessesBut(std::span<const Rank> vacant) const {
  std::vector<Rank> present;
  Rank process = 0;
  for (size_t worker = 0; worker < joined_.processes.size(); ++worker) {
    const bool is_here = !std::ranges::binary_search(vacant, static_cast<Rank>(worker));
    for (int i = 0; i < joined_.processes[worker]; ++i, ++process) {
      if (is_here) present.push_back(process);
    }
  }
  return present;
}

absl::Status Worker::ReportValue(const ReportedValue& value) {
  BDN_RETURN_IF_ERROR(CheckTakesPart());
  return control_->ReportValue(value);
}

absl::Status Worker::Leave(absl::Duration timeout) {
  {
    MutexLock lock(tensors_.mutex());
    // A second Leave, as at the end of a program that has already left.
    if (tensors_.participation().left) return absl::OkStatus();
  }
  const absl::Time deadline = clock_->Now() + timeout;
  // Servers first: other workers would fail rounds that wait for a push of a worker that has left.
  BDN_RETURN_IF_ERROR(exchanges_->PrepareToLeave(deadline));
  FaultPoint("leave.some");
  // Servers end their connections once all workers have left.
  if (recorder_ != nullptr) recorder_->Sample();
  BDN_RETURN_IF_ERROR(
      control_->Leave(absl::OkStatus(), std::max(absl::ZeroDuration(), deadline - clock_->Now())));
  if (history_ != nullptr) history_->Write("left", "");
  // Requests without an answer get none now: all workers have left.
  exchanges_->SetLeft(Aborted("all workers have left the job"));
  return absl::OkStatus();
}

absl::Status Worker::Depart(const std::string& reason) {
  BDN_RETURN_IF_ERROR(CheckTakesPart());
  BDN_RETURN_IF_ERROR(control_->Leave(Unavailable("%s", reason), absl::ZeroDuration()));
  if (history_ != nullptr) history_->Write("left", "");
  exchanges_->SetLeft(Aborted("this worker has left the job: %s", reason));
  return absl::OkStatus();
}

absl::Status Worker::Abort(const std::string& reason) {
  const Step step = exchanges_->highest_step();
  const absl::Status status =
      step == 0 ? Aborted("%s", reason) : Aborted("%s, after step %d", reason, step);
  // The scheduler first: if it cannot be told, the job goes on, and so does this worker.
  BDN_RETURN_IF_ERROR(control_->Leave(status, absl::ZeroDuration()));
  exchanges_->Fail(status);
  return absl::OkStatus();
}

// ---- Tensors

absl::StatusOr<std::vector<uint32_t>> Worker::Declare(std::vector<TensorDeclaration> tensors,
                                                      absl::Duration timeout) {
  const absl::Time deadline = clock_->Now() + timeout;
  // By group. Workers declare in several groups in the same order, so that none waits for another
  // one that waits for it.
  std::map<RankGroup, std::vector<TensorDeclaration>> fresh;
  // Held over the call to the scheduler, so that declarations reach it in the order in which this
  // worker's callers made them: the n-th belongs to the n-th of other workers.
  MutexLock one_at_a_time(&declaring_);
  {
    MutexLock lock(tensors_.mutex());
    BDN_RETURN_IF_ERROR(tensors_.participation().Check());
    for (TensorDeclaration& tensor : tensors) {
      BDN_RETURN_IF_ERROR(TensorTable::Canonicalize(&tensor));
      BDN_RETURN_IF_ERROR(CheckRanks(tensor));
      BDN_RETURN_IF_ERROR(CheckBound(tensor));
      BDN_ASSIGN_OR_RETURN(const bool is_new, tensors_.IsNew(tensor));
      if (is_new) fresh[tensor.ranks].push_back(tensor);
    }
  }
  std::vector<Key> earlier;
  for (const auto& [ranks, list] : fresh) {
    BDN_ASSIGN_OR_RETURN(const DeclareResult declared,
                         control_->Declare(list, deadline - clock_->Now()));
    SayUncompressed(declared);
    BDN_RETURN_IF_ERROR(TakeDeclared(list, declared, &earlier).status());
  }
  BDN_ASSIGN_OR_RETURN(const std::vector<uint32_t> ids, TakeDeclared(tensors, {}, &earlier));
  if (!earlier.empty()) BDN_RETURN_IF_ERROR(BeginWhereServersStand(earlier, deadline));
  return ids;
}

absl::Status Worker::CheckBound(const TensorDeclaration& tensor) const {
  if (tensor.kind != KeyKind::kRows) return absl::OkStatus();
  BDN_ASSIGN_OR_RETURN(const TableSpec spec, TableSpec::Parse(tensor.table));
  const JobConfig& job = joined_.config;
  return CheckMaxRows(spec, tensor.name, RowBucketsOf(job.row_buckets, job.num_servers));
}

absl::Status Worker::CheckRanks(const TensorDeclaration& tensor) const {
  const RankGroup& ranks = tensor.ranks;
  if (!ranks.is_all() && static_cast<size_t>(ranks.last()) >= joined_.processes.size()) {
    return InvalidArgument("tensor '%s': it is of %s, and the job has %d workers", tensor.name,
                           ranks.ToString(), joined_.processes.size());
  }
  if (ranks.Has(joined_.rank)) return absl::OkStatus();
  return InvalidArgument("tensor '%s': it is of %s, and this worker's rank is %d", tensor.name,
                         ranks.ToString(), joined_.rank);
}

absl::StatusOr<std::vector<uint32_t>> Worker::TakeDeclared(
    std::span<const TensorDeclaration> tensors, const DeclareResult& declared,
    std::vector<Key>* earlier) {
  const bool is_late = is_candidate() || entered_in_ != 0;
  MutexLock lock(tensors_.mutex());
  for (const SharedDelta& delta : declared) {
    const absl::Status added = tensors_.Add(*delta);
    // A part of a catalogue that contradicts itself may have been added by now, and nothing can go
    // on with that.
    if (!added.ok()) tensors_.participation().failed = tensors_.participation().over = added;
    BDN_RETURN_IF_ERROR(added);
    LetSurvive(*delta);
    NameKeys(*delta);
    for (size_t i = 0; is_late && i < delta->tensors.size(); ++i) {
      tensors_.at(delta->first_tensor + static_cast<uint32_t>(i)).is_declared = false;
    }
    // Others may have exchanged them before this worker was taken in.
    if (delta->version.epoch >= entered_in_ || is_candidate()) continue;
    for (const KeyEntry& entry : delta->keys) earlier->push_back(entry.key);
  }
  std::vector<uint32_t> ids;
  for (const TensorDeclaration& tensor : tensors) {
    const uint32_t* id = tensors_.FindId(tensor.name);
    if (id == nullptr) return Internal("the scheduler's catalogue lacks tensor '%s'", tensor.name);
    tensors_.at(*id).is_declared = true;
    ids.push_back(*id);
  }
  return ids;
}

void Worker::NameKeys(const CatalogueDelta& delta) {
  if (recorder_ == nullptr) return;
  for (const KeyEntry& entry : delta.keys) {
    recorder_->Name(entry.key.value, tensors_.FindKey(entry.key)->key().tensor_names[0]);
  }
}

uint64_t Worker::RecordedKeyOf(uint32_t tensor) {
  MutexLock lock(tensors_.mutex());
  const Tensor* const found = tensors_.Find(tensor);
  return found == nullptr || found->parts.empty() ? 0 : found->parts.front().key.value;
}

void Worker::NoteTrouble(const std::string& why) {
  if (recorder_ != nullptr) recorder_->WriteOnTrouble(why);
}

void Worker::LetSurvive(const CatalogueDelta& delta) {
  const uint32_t most = joined_.config.replay_steps;
  if (most == 0) return;
  // A worker may be lost together with a server.
  const bool keeps_reply = joined_.config.MayHaveVacantRanks();
  std::vector<RecoveryTable::KeyFacts> keys;
  for (size_t i = 0; i < delta.keys.size(); ++i) {
    KeyExchange* const exchange = tensors_.FindKey(delta.keys[i].key);
    const DeclaredKey& key = exchange->key();
    // Rows do not survive their server: it is the one that gains the key that ends the job.
    if (key.entry.kind == KeyKind::kRows) continue;
    const bool is_dense = key.entry.kind == KeyKind::kDense;
    const bool has_replica = is_dense && key.link.codecs.keeps_replica();
    // The last reply of a group may lack some of its weights.
    const bool has_copy = is_dense && keeps_reply && key.entry.segments.size() > 1 &&
                          key.link.codecs.reply == ReplyKind::kWeights;
    keys.push_back({.key = key.entry.key,
                    .home = delta.owners[i],
                    .declared_in = delta.version.epoch,
                    .catalogue_version = delta.version.catalogue,
                    .is_dense = is_dense,
                    .elements = key.entry.elements,
                    .ranks = key.entry.ranks,
                    .tensor = key.tensor_names[0],
                    .snapshot_every = SnapshotEvery(key, most),
                    .keeps_reply = keeps_reply,
                    .replica = has_replica ? exchange->replica() : nullptr,
                    .copy = has_copy ? exchange->KeepCopy() : nullptr});
  }
  requests_->AddKeys(std::move(keys));
}

void Worker::SayUncompressed(const DeclareResult& declared) {
  // One worker's line is enough, as all have the same catalogue.
  if (rank() != 0 || said_uncompressed_) return;
  Uncompressed all;
  for (const SharedDelta& delta : declared) {
    const Uncompressed count = CountUncompressed(*delta);
    all.tensors += count.tensors;
    all.bytes += count.bytes;
    all.of_tensors += count.of_tensors;
    all.of_bytes += count.of_bytes;
  }
  if (all.bytes * kWorthSaying < all.of_bytes || all.bytes == 0) return;
  said_uncompressed_ = true;
  LogWarning(
      "%d of %d tensors with a codec, %d of their %d bytes, go uncompressed: their frames are "
      "under "
      "the job's min-compress-bytes, %d; bandoneon-scheduler --min-compress-bytes=1 (bandoneon run "
      "--set min-compress-bytes=1) compresses all of them",
      all.tensors, all.of_tensors, all.bytes, all.of_bytes, joined_.config.min_compress_bytes);
}

absl::Status Worker::Retire(std::span<const uint32_t> tensors) {
  std::vector<uint32_t> known;
  {
    MutexLock lock(tensors_.mutex());
    BDN_ASSIGN_OR_RETURN(known, tensors_.CheckRetire(tensors));
    // The scheduler would not wait for a candidate, and its program may declare the same again.
    if (tensors_.participation().is_candidate) {
      for (const uint32_t id : known) tensors_.at(id).is_declared = false;
      retired_before_.insert(retired_before_.end(), known.begin(), known.end());
      return absl::OkStatus();
    }
  }
  // The scheduler is told first, so that no later declaration of these names overtakes this. Until
  // the next line the tensors are as they were.
  control_->Retire(known);
  exchanges_->Retire(known);
  return absl::OkStatus();
}

absl::StatusOr<TensorFacts> Worker::FactsOf(uint32_t id) const {
  MutexLock lock(tensors_.mutex());
  BDN_ASSIGN_OR_RETURN(const Tensor* tensor, tensors_.FindDense(id));
  const TensorDeclaration& declared = tensor->declaration;
  TensorFacts facts{.name = declared.name, .dtype = declared.dtype, .elements = declared.elements};
  const bool runs_on_device =
      std::all_of(tensor->parts.begin(), tensor->parts.end(),
                  [](const TensorPart& part) { return part.exchange->key().runs_on_device; });
  if (runs_on_device) {
    facts.codec_for_devices = tensor->parts[0].exchange->key().link.codecs.push->shared_codec();
  }
  return facts;
}

absl::StatusOr<std::vector<Rank>> Worker::ServersOf(uint32_t id) const {
  // Before the table's lock, which is never held while a membership is waited for.
  std::shared_ptr<const Membership> membership;
  {
    MutexLock lock(&membership_mu_);
    membership = membership_;
  }
  MutexLock lock(tensors_.mutex());
  BDN_ASSIGN_OR_RETURN(const Tensor* tensor, tensors_.FindDense(id));
  std::vector<Rank> ranks;
  for (const TensorPart& part : tensor->parts) {
    const SlotOwner owner = membership->OwnerOf(part.key, part.exchange->key().server);
    const NodeInfo* const server = membership->Find(owner.server);
    ranks.push_back(server == nullptr ? -1 : server->rank);
  }
  return ranks;
}

// ---- What is asked of the servers besides exchanges

absl::Status Worker::BroadcastParts(const BroadcastCall& call, absl::Duration timeout) {
  if (call.root < 0 || call.root >= num_processes_) {
    return InvalidArgument("broadcast '%s': root %d is not one of %d workers", call.name, call.root,
                           num_processes_);
  }
  const RankGroup among = GroupInName(call.name);
  if (!among.Has(call.root)) {
    return InvalidArgument("broadcast '%s': root %d is none of these ranks", call.name, call.root);
  }
  const size_t bytes = ScatteredBytes(call.data).size();
  if (bytes == 0) return absl::OkStatus();
  // The value that a newcomer is to have is of a later step than the others' first one. Nor is
  // anything declared: the sizes of the others' values may have been others.
  if (is_candidate()) return CheckTakesPart();
  const absl::Time deadline = clock_->Now() + timeout;
  // Each name and size has a key of its own, which is used again for each broadcast.
  const TensorDeclaration declaration{.name = absl::StrFormat("broadcast/%s/%d", call.name, bytes),
                                      .dtype = DType::kUInt8,
                                      .elements = bytes,
                                      .kind = KeyKind::kBroadcast,
                                      .ranks = among};
  BDN_ASSIGN_OR_RETURN(const std::vector<uint32_t> ids, Declare({declaration}, timeout));
  BroadcastCall of_worker = call;
  of_worker.root = WorkerOf(call.root);
  return server_requests_->Broadcast(of_worker, ids[0], deadline);
}

absl::Status Worker::Perform(StateCall* call, absl::Duration timeout) {
  {
    MutexLock lock(tensors_.mutex());
    const bool is_of_link = call->where == StateCall::Where::kThisLink;
    if (!is_of_link) BDN_RETURN_IF_ERROR(tensors_.participation().Check());
    std::vector<StateSubject> subjects;
    Tensor* tensor = nullptr;
    for (const uint32_t id : call->subjects()) {
      BDN_ASSIGN_OR_RETURN(tensor, tensors_.FindDense(id));
      subjects.push_back({&tensor->declaration, tensor->pushed, TensorTable::IsIdle(*tensor)});
    }
    BDN_RETURN_IF_ERROR(CheckStateCall(*call, subjects));
    // What a candidate would set the others have set, and have gone on since.
    if (is_candidate() && !call->reads()) return absl::OkStatus();
    if (is_of_link) return PerformAtLink(tensor, call);
    BDN_RETURN_IF_ERROR(tensors_.participation().CheckIsIn());
  }
  return server_requests_->Perform(call, clock_->Now() + timeout);
}

// ---- Exchanges

absl::Status Worker::PushPullAll(std::span<PushRequest> requests, std::vector<TicketId>* tickets) {
  return exchanges_->PushPullAll(requests, tickets);
}

absl::Status Worker::WaitAll(std::span<const TicketId> tickets, absl::Duration timeout,
                             std::vector<PushResult>* results) {
  return exchanges_->WaitAll(tickets, timeout, results);
}

absl::Status Worker::DescribeWait(TicketId ticket) { return exchanges_->DescribeWait(ticket); }

Worker::Counts Worker::counts() const {
  Counts counts = {
      .rank = rank(),
      .size = presence().size,
      .highest_step = exchanges_->highest_step(),
      .traffic = transport_->stats(),
      .requests = requests_->stats(),
      .connections = requests_->Connections(),
      .recovery = requests_->recovery_stats(),
      .silent_seconds = static_cast<uint64_t>(absl::ToInt64Seconds(control_->SchedulerSilence()))};
  MutexLock lock(tensors_.mutex());
  counts.tensors = tensors_.size();
  counts.tickets_ended = exchanges_->num_tickets_ended();
  return counts;
}

}  // namespace bdn
