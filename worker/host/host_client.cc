#include "worker/host/host_client.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <utility>

#include "common/base/status.h"
#include "common/cluster/control_messages.h"
#include "common/cluster/declaration_list.h"
#include "common/cluster/host_and_pid.h"
#include "proto/host.pb.h"
#include "worker/host/host_messages.h"
#include "worker/scattered_bytes.h"

namespace bdn {
namespace {

namespace wire = bandoneon::host;

constexpr uint64_t kNoLimit = ~uint64_t{0};
constexpr absl::Duration kTimeToDescribe = absl::Seconds(2);
constexpr absl::Duration kTimeToCount = absl::Seconds(2);

// Returns the error of a call that is of some ranks alone: the daemon gathers all of its processes.
absl::Status NoGroup(const std::string& what) {
  return absl::UnimplementedError(
      what +
      ": a process that takes part through its host's daemon exchanges with all ranks; start the "
      "workers without a daemon to exchange among some of them");
}

constexpr Family kCopied = {
    "host_copied_bytes", Metric::Kind::kCounter,
    "So many bytes were copied for the daemon to read (push), and of results out of its memory "
    "(pull).",
    "direction"};
// The process's own metrics; the daemon's follow them.
using Counts = HostClient::Counts;
constexpr MetricRow<Counts> kMetrics[] = {
    {{"rank", Metric::Kind::kGauge, "This worker has this rank."},
     [](const Counts& now) { return static_cast<uint64_t>(now.rank); }},
    {{"size", Metric::Kind::kGauge, "The job has so many workers."},
     [](const Counts& now) { return static_cast<uint64_t>(now.size); }},
    {{"tickets_done", Metric::Kind::kCounter, "So many exchanges of whole tensors have ended."},
     [](const Counts& now) { return now.tickets_ended; }},
    {{"bytes_staged", Metric::Kind::kCounter, "So many bytes were copied for the daemon to read.",
      &kCopied, "push"},
     [](const Counts& now) { return now.bytes_staged; }},
    {{"bytes_results", Metric::Kind::kCounter,
      "So many bytes of results were copied into the caller's tensors.", &kCopied, "pull"},
     [](const Counts& now) { return now.bytes_results; }},
};

std::shared_ptr<ShmArena> MakeArena() {
  auto arena = std::make_shared<ShmArena>(kNoLimit);
  arena->Enable();
  return arena;
}

}  // namespace

// ---- Life

HostClient::HostClient(const Options& options, FileDescriptor socket, const Clock* clock)
    : arena_(MakeArena()),
      channel_(options, std::move(socket), arena_, clock),
      calls_(arena_, &channel_, clock),
      pushes_(options.codec, arena_, &channel_, clock) {}

absl::StatusOr<std::unique_ptr<HostClient>> HostClient::Attach(const Options& options,
                                                               FileDescriptor socket,
                                                               const Clock* clock,
                                                               Registry* telemetry,
                                                               const RecorderOptions& recorder) {
  std::unique_ptr<HostClient> client(new HostClient(options, std::move(socket), clock));
  HostClient* const self = client.get();
  // The handlers get the raw pointer: the channel's thread ends in the destructor, before the
  // parts.
  BDN_RETURN_IF_ERROR(self->channel_.Attach({
      .ended = [self](const wire::Ended& ended) { return self->pushes_.OnEnded(ended); },
      .answer = [self](wire::Answer answer) { return self->calls_.OnAnswer(std::move(answer)); },
      .over =
          [self](const absl::Status& status) {
            Recorder* const recorder = self->recorder_of_channel_.load();
            if (recorder != nullptr) recorder->WriteOnTrouble(std::string(status.message()));
            self->calls_.Fail(status);
            self->pushes_.Fail(status);
          },
  }));
  BDN_RETURN_IF_ERROR(client->CountWhatTheDaemonCounts(options.attach_timeout, telemetry));
  client->recorder_ = Recorder::Open(
      recorder,
      {.job = options.job_id, .role = "process", .host = HostAndPid(), .rank = client->rank()});
  self->recorder_of_channel_ = self->recorder_.get();
  return client;
}

// By name, because the daemon keeps the keys to itself.
uint64_t HostClient::RecordedKeyOf(uint32_t tensor) {
  const absl::StatusOr<TensorFacts> facts = FactsOf(tensor);
  return facts.ok() ? recorder_->NumberOf(facts->name) : 0;
}

HostClient::~HostClient() {
  metrics_.clear();
  channel_.Close();
  channel_.Join();
}

// ---- Tensors and pushes

absl::StatusOr<std::vector<uint32_t>> HostClient::Declare(std::vector<TensorDeclaration> tensors,
                                                          absl::Duration timeout) {
  for (const TensorDeclaration& tensor : tensors) {
    if (!tensor.ranks.is_all()) return NoGroup(absl::StrFormat("tensor '%s'", tensor.name));
  }
  MutexLock one_at_a_time(&declaring_);
  BDN_ASSIGN_OR_RETURN(std::vector<TensorDeclaration> fresh, pushes_.FindNew(&tensors));
  // Before the call, so that a mistake is an error of this process alone.
  BDN_RETURN_IF_ERROR(CheckDeclarations(fresh));
  wire::Answer answer;
  if (!fresh.empty()) {
    wire::Call call;
    Write(DeclarationPart{.count = static_cast<uint32_t>(fresh.size()), .tensors = fresh},
          call.mutable_declare());
    BDN_ASSIGN_OR_RETURN(answer, calls_.Ask(std::move(call), timeout));
  }
  return pushes_.Add(tensors, std::move(fresh), answer);
}

absl::Status HostClient::WaitAll(std::span<const TicketId> tickets, absl::Duration timeout,
                                 std::vector<PushResult>* results) {
  return pushes_.tickets().WaitAll(
      tickets, timeout, [this](TicketId ticket) { return DescribeWait(ticket); }, results);
}

absl::Status HostClient::DescribeWait(TicketId ticket) {
  BDN_ASSIGN_OR_RETURN(const TicketTable::Subject subject, pushes_.tickets().Find(ticket));
  wire::Call call;
  call.set_describe(subject.tensor);
  // The daemon knows which process or node is missing.
  const absl::Status described = calls_.Ask(std::move(call), kTimeToDescribe).status();
  return described.ok() ? DeadlineExceeded("still in flight") : described;
}

// ---- With all others

absl::Status HostClient::BroadcastParts(const BroadcastCall& broadcast, absl::Duration timeout) {
  if (broadcast.root < 0 || broadcast.root >= joined_size()) {
    return InvalidArgument("broadcast '%s': root %d is not one of %d workers", broadcast.name,
                           broadcast.root, joined_size());
  }
  if (!GroupInName(broadcast.name).is_all()) {
    return NoGroup(absl::StrFormat("broadcast '%s'", broadcast.name));
  }
  BDN_RETURN_IF_ERROR(pushes_.Check());
  const ScatteredBytes parts(broadcast.data);
  const size_t bytes = parts.size();
  if (bytes == 0) return absl::OkStatus();
  // The daemon fetches a value once for all of its processes, whatever they hold.
  const bool is_in_place = broadcast.data.size() == 1 && broadcast.holding != Holding::kValue;
  Buffer copy;
  if (broadcast.holding == Holding::kValue && broadcast.root != rank()) {
    copy = Buffer::Allocate(bytes);  // for a value that nobody looks at
  } else if (!is_in_place) {
    copy = parts.Copy(0, bytes);
  }
  const MutableByteSpan data = is_in_place ? broadcast.data.front() : copy.mutable_span();
  wire::Call call;
  call.mutable_broadcast()->set_name(broadcast.name);
  call.mutable_broadcast()->set_bytes(bytes);
  call.mutable_broadcast()->set_root(broadcast.root);
  Buffer lent;
  if (broadcast.root == rank()) {
    HostPlace place;
    BDN_ASSIGN_OR_RETURN(lent, calls_.Lend(data, &place));
    Write(place, call.mutable_broadcast()->mutable_data());
  }
  BDN_RETURN_IF_ERROR(calls_.Ask(std::move(call), timeout, data).status());
  const bool is_given = !is_in_place && broadcast.holding != Holding::kValue;
  if (is_given) parts.Write(0, data);
  return absl::OkStatus();
}

absl::StatusOr<Tables*> HostClient::tables() {
  return absl::UnimplementedError(
      "tables of rows do not go through the host's daemon, bandoneon-worker, yet: run this process "
      "as a worker of its own");
}

absl::StatusOr<std::vector<Rank>> HostClient::Boundary(absl::Duration timeout) {
  BDN_RETURN_IF_ERROR(pushes_.CheckIdle());
  wire::Call call;
  call.mutable_boundary();
  BDN_ASSIGN_OR_RETURN(const wire::Answer answer, calls_.Ask(std::move(call), timeout));
  for (const wire::TensorStep& step : answer.steps()) {
    // One that this process has retired is not among its tensors.
    const absl::Status set = pushes_.SetStep(step.id(), step.step());
    if (!set.ok() && !absl::IsNotFound(set)) return set;
  }
  channel_.SetTakenIn();
  return std::vector<Rank>(answer.present().begin(), answer.present().end());
}

absl::StatusOr<std::vector<Rank>> HostClient::Meet(const std::string& name,
                                                   absl::Duration timeout) {
  if (!GroupInName(name).is_all()) return NoGroup(absl::StrFormat("barrier '%s'", name));
  BDN_RETURN_IF_ERROR(pushes_.Check());
  wire::Call call;
  call.set_barrier(name);
  BDN_ASSIGN_OR_RETURN(const wire::Answer answer, calls_.Ask(std::move(call), timeout));
  return std::vector<Rank>(answer.present().begin(), answer.present().end());
}

absl::Status HostClient::ReportValue(const ReportedValue& value) {
  BDN_RETURN_IF_ERROR(CheckReportName(value.name));
  BDN_RETURN_IF_ERROR(pushes_.Check());
  wire::ToDaemon message;
  message.mutable_report()->set_name(value.name);
  message.mutable_report()->set_step(value.step);
  message.mutable_report()->set_value(value.value);
  channel_.Send(message);
  return absl::OkStatus();
}

absl::Status HostClient::Leave(absl::Duration timeout) {
  {
    MutexLock lock(&mu_);
    if (has_left_) return absl::OkStatus();
  }
  BDN_RETURN_IF_ERROR(pushes_.BeginLeaving());
  wire::Call call;
  call.mutable_leave();
  const absl::Status status = calls_.Ask(std::move(call), timeout).status();
  {
    MutexLock lock(&mu_);
    has_left_ = status.ok();
  }
  pushes_.EndLeaving();
  // Calls of other threads that still wait get no answer any more.
  if (status.ok()) channel_.Fail(Aborted("all workers have left the job"));
  return status;
}

absl::Status HostClient::Depart(const std::string& reason) {
  absl::Status status = pushes_.Check();
  if (status.ok()) {
    wire::Call call;
    call.set_depart(reason);
    status = calls_.Ask(std::move(call), absl::InfiniteDuration()).status();
  }
  // Another process of this host has asked before, and that news may be here before the answer, or
  // before this call.
  if (!status.ok() && !IsEvicted(status)) return status;
  {
    MutexLock lock(&mu_);
    has_left_ = true;
  }
  channel_.Fail(Aborted("this worker has left the job: %s", reason));
  return absl::OkStatus();
}

absl::Status HostClient::Abort(const std::string& reason) {
  wire::Call call;
  call.set_abort(reason);
  return calls_.Ask(std::move(call), absl::InfiniteDuration()).status();
}

// ---- State

absl::Status HostClient::Perform(StateCall* call, absl::Duration timeout) {
  const bool is_of_link = call->where == StateCall::Where::kThisLink;
  BDN_RETURN_IF_ERROR(pushes_.CheckState(call));
  if (call->what == StateCall::What::kGetStep) return absl::OkStatus();
  wire::Call message;
  Write(*call, message.mutable_state());
  Buffer lent;
  if (call->what == StateCall::What::kSet) {
    HostPlace place;
    BDN_ASSIGN_OR_RETURN(lent, calls_.Lend(std::as_bytes(call->in), &place));
    Write(place, message.mutable_state()->mutable_data());
  }
  BDN_ASSIGN_OR_RETURN(
      const wire::Answer answer,
      calls_.Ask(std::move(message), is_of_link ? absl::InfiniteDuration() : timeout,
                 std::as_writable_bytes(call->out)));
  if (call->what == StateCall::What::kGetCounters) call->counters = Read(answer.counters());
  if (call->what != StateCall::What::kSetStep) return absl::OkStatus();
  return pushes_.SetStep(call->tensor, call->step);
}

// ---- What is counted

absl::Status HostClient::CountWhatTheDaemonCounts(absl::Duration timeout, Registry* telemetry) {
  wire::Call call;
  call.mutable_stats();
  BDN_ASSIGN_OR_RETURN(const wire::Answer answer, calls_.Ask(std::move(call), timeout));
  for (const wire::Number& number : answer.numbers()) {
    const bool is_ours =
        std::any_of(std::begin(kMetrics), std::end(kMetrics),
                    [&](const auto& row) { return row.metric.name == number.name(); });
    // The daemon counts for the whole host; rank and size, say, are this process's.
    if (is_ours) continue;
    const std::string& name = texts_.emplace_back(number.name());
    const std::string& help = texts_.emplace_back(number.help());
    daemons_metrics_.push_back({name.c_str(),
                                number.kind() == 0 ? Metric::Kind::kCounter : Metric::Kind::kGauge,
                                help.c_str()});
  }
  metrics_.push_back(telemetry->Add(kMetrics, [this] { return counts(); }));
  metrics_.push_back(telemetry->Add([this](auto samples) { ReadDaemonsMetrics(samples); }));
  for (const wire::CountedObject& object : answer.objects()) {
    const char* name = texts_.emplace_back(object.name()).c_str();
    metrics_.push_back(
        telemetry->AddObject(name, [this, name] { return ReadDaemonsObject(name); }));
  }
  return absl::OkStatus();
}

// Returns one of the daemon's JSON objects; empty once the daemon is gone.
std::string HostClient::ReadDaemonsObject(std::string_view name) {
  wire::Call call;
  call.mutable_stats();
  const auto answer = calls_.Ask(std::move(call), kTimeToCount);
  if (!answer.ok()) return "";
  for (const wire::CountedObject& object : answer->objects()) {
    if (object.name() == name) return object.json();
  }
  return "";
}

HostClient::Counts HostClient::counts() const {
  return {.rank = rank(),
          .size = presence().size,
          .tickets_ended = pushes_.num_tickets_ended(),
          .bytes_staged = pushes_.bytes_staged(),
          .bytes_results = pushes_.bytes_results()};
}

// Reads the daemon's metrics; zeros once the daemon is gone, so that an exporter does not fail at
// the end of a job.
void HostClient::ReadDaemonsMetrics(std::vector<Sample>* samples) {
  wire::Call call;
  call.mutable_stats();
  const auto answer = calls_.Ask(std::move(call), kTimeToCount);
  std::map<std::string_view, uint64_t> found;
  if (answer.ok()) {
    for (const wire::Number& number : answer->numbers()) found[number.name()] = number.value();
  }
  for (const Metric& metric : daemons_metrics_) samples->push_back({&metric, found[metric.name]});
}

}  // namespace bdn
