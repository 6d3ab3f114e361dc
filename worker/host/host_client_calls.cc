#include <algorithm>
#include <cstring>
#include <utility>

#include "common/base/status.h"
#include "common/cluster/control_messages.h"
#include "common/cluster/declaration_list.h"
#include "compressors/codec_schedule.h"
#include "proto/host.pb.h"
#include "worker/host/host_client.h"
#include "worker/host/host_messages.h"
#include "worker/tensor_table.h"

// What a process asks of its host's daemon.

namespace bdn {
namespace {

namespace wire = bandoneon::host;

// For the daemon to say that a call's time is over.
constexpr absl::Duration kAnswerGrace = absl::Seconds(10);
constexpr absl::Duration kTimeToCount = absl::Seconds(2);

constexpr Family kCopied = {
    "host_copied_bytes", Metric::Kind::kCounter,
    "So many bytes were copied for the daemon to read (push), and of results out of its memory "
    "(pull).",
    "direction"};
// Metrics of the process itself; those of the daemon follow.
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

}  // namespace

struct HostClient::Caller {
  bool is_answered = false;
  wire::Answer answer;
  std::span<std::byte> out;  // where data goes
};

// ---- Asking

absl::StatusOr<wire::Answer> HostClient::Ask(wire::Call call, absl::Duration timeout,
                                             std::span<std::byte> out) const {
  Caller caller{.out = out};
  call.set_timeout_ms(TimeoutToMilliseconds(timeout));
  const absl::Time deadline = clock_->Now() + timeout + kAnswerGrace;
  wire::ToDaemon message;
  {
    MutexLock lock(&mu_);
    if (!over_.ok()) return over_;
    call.set_id(++last_call_);
    callers_[call.id()] = &caller;
  }
  const uint64_t id = call.id();
  *message.mutable_call() = std::move(call);
  Send(message);
  MutexLock lock(&mu_);
  while (!caller.is_answered && over_.ok() && clock_->Now() < deadline) {
    clock_->WaitUntil(&changed_, &mu_, deadline);
  }
  callers_.erase(id);
  if (!caller.is_answered) {
    if (!over_.ok()) return over_;
    return DeadlineExceeded("the daemon of this host, at %s, does not answer", options_.address);
  }
  BDN_RETURN_IF_ERROR(Read(caller.answer.status()));
  return std::move(caller.answer);
}

absl::Status HostClient::OnAnswer(wire::Answer answer) {
  const uint64_t id = answer.id();
  const bool has_data = answer.has_data();
  absl::Status status;
  {
    MutexLock lock(&mu_);
    const auto caller = callers_.find(id);
    if (caller != callers_.end()) {
      const std::span<std::byte> out = caller->second->out;
      if (has_data && !out.empty()) {
        const auto data = channel_->Resolve(Read(answer.data()), out.size());
        status = data.status();
        if (data.ok()) std::memcpy(out.data(), data->span.data(), out.size());
      }
      caller->second->answer = std::move(answer);
      caller->second->is_answered = true;
      callers_.erase(caller);
      changed_.SignalAll();
    }
  }
  if (has_data) {
    wire::ToDaemon taken;
    taken.set_taken(id);
    channel_->Send(taken);
  }
  return status;
}

absl::StatusOr<Buffer> HostClient::Lend(ByteSpan bytes, HostPlace* place) const {
  const Buffer copy = pool_.Get(bytes.size());
  std::memcpy(copy.data(), bytes.data(), bytes.size());
  const auto found = channel_->Find(copy.span());
  if (!found.has_value()) {
    return ResourceExhausted("%d bytes of shared memory for the daemon to read are not to be had",
                             bytes.size());
  }
  *place = *found;
  return copy;
}

// ---- Tensors

absl::StatusOr<std::vector<uint32_t>> HostClient::Declare(std::vector<TensorDeclaration> tensors,
                                                          absl::Duration timeout) {
  std::vector<TensorDeclaration> fresh;
  MutexLock one_at_a_time(&declaring_);
  {
    MutexLock lock(&mu_);
    BDN_RETURN_IF_ERROR(Check());
    for (TensorDeclaration& tensor : tensors) {
      BDN_RETURN_IF_ERROR(TensorTable::Canonicalize(&tensor));
      const auto known = ids_.find(tensor.name);
      if (known == ids_.end()) {
        fresh.push_back(tensor);
        continue;
      }
      const TensorDeclaration& before = tensors_.at(known->second).declaration;
      if (before == tensor) continue;
      return InvalidArgument("tensor '%s' was declared with %s, and now with %s", tensor.name,
                             DescribeDifference(before, tensor),
                             DescribeDifference(tensor, before));
    }
  }
  BDN_RETURN_IF_ERROR(CheckDeclarations(fresh));
  wire::Answer answer;
  if (!fresh.empty()) {
    wire::Call call;
    Write(DeclarationPart{.count = static_cast<uint32_t>(fresh.size()), .tensors = fresh},
          call.mutable_declare());
    BDN_ASSIGN_OR_RETURN(answer, Ask(std::move(call), timeout));
    if (static_cast<size_t>(answer.tensors_size()) != fresh.size()) {
      return Internal("the daemon declared %d tensors, of %d", answer.tensors_size(), fresh.size());
    }
  }
  MutexLock lock(&mu_);
  for (size_t i = 0; i < fresh.size(); ++i) {
    const wire::DeclaredTensor& declared = answer.tensors(static_cast<int>(i));
    Tensor& tensor = tensors_[declared.id()];
    const bool is_double = fresh[i].dtype == DType::kFloat64;
    const size_t bytes = fresh[i].elements * (is_double ? sizeof(double) : sizeof(float));
    BDN_ASSIGN_OR_RETURN(tensor.result, channel_->Resolve(Read(declared.result()), bytes));
    BDN_ASSIGN_OR_RETURN(const CodecSchedule push, ParseCodecSchedule(fresh[i].push_spec.str()));
    tensor.keeps_left_out = fresh[i].momentum > 0 || push.last().error_feedback;
    ids_[fresh[i].name] = declared.id();
    tensor.declaration = std::move(fresh[i]);
  }
  std::vector<uint32_t> ids;
  for (const TensorDeclaration& tensor : tensors) ids.push_back(ids_.at(tensor.name));
  return ids;
}

absl::StatusOr<TensorFacts> HostClient::FactsOf(uint32_t id) const {
  MutexLock lock(&mu_);
  BDN_ASSIGN_OR_RETURN(const Tensor* const tensor, Find(id));
  const TensorDeclaration& declared = tensor->declaration;
  return TensorFacts{.name = declared.name,
                     .dtype = declared.dtype,
                     .elements = declared.elements,
                     .codec_for_devices = nullptr};
}

// ---- With all others

absl::Status HostClient::Broadcast(const std::string& name, MutableByteSpan data, Rank root,
                                   absl::Duration timeout) {
  if (root < 0 || root >= size()) {
    return InvalidArgument("broadcast '%s': root %d is not one of %d workers", name, root, size());
  }
  {
    MutexLock lock(&mu_);
    BDN_RETURN_IF_ERROR(Check());
  }
  if (data.empty()) return absl::OkStatus();
  wire::Call call;
  call.mutable_broadcast()->set_name(name);
  call.mutable_broadcast()->set_bytes(data.size());
  call.mutable_broadcast()->set_root(root);
  Buffer lent;
  if (root == rank()) {
    HostPlace place;
    BDN_ASSIGN_OR_RETURN(lent, Lend(data, &place));
    Write(place, call.mutable_broadcast()->mutable_data());
  }
  return Ask(std::move(call), timeout, data).status();
}

absl::Status HostClient::Barrier(const std::string& name, absl::Duration timeout) {
  {
    MutexLock lock(&mu_);
    BDN_RETURN_IF_ERROR(Check());
  }
  wire::Call call;
  call.set_barrier(name);
  return Ask(std::move(call), timeout).status();
}

absl::Status HostClient::ReportValue(const ReportedValue& value) {
  BDN_RETURN_IF_ERROR(CheckReportName(value.name));
  {
    MutexLock lock(&mu_);
    BDN_RETURN_IF_ERROR(Check());
  }
  wire::ToDaemon message;
  message.mutable_report()->set_name(value.name);
  message.mutable_report()->set_step(value.step);
  message.mutable_report()->set_value(value.value);
  Send(message);
  return absl::OkStatus();
}

absl::Status HostClient::Leave(absl::Duration timeout) {
  {
    MutexLock lock(&mu_);
    if (has_left_) return absl::OkStatus();
    BDN_RETURN_IF_ERROR(over_);
    is_leaving_ = true;
  }
  wire::Call call;
  call.mutable_leave();
  const absl::Status status = Ask(std::move(call), timeout).status();
  {
    MutexLock lock(&mu_);
    has_left_ = status.ok();
    is_leaving_ = !over_.ok();
  }
  if (status.ok()) Fail(Aborted("all workers have left the job"));
  return status;
}

absl::Status HostClient::Abort(const std::string& reason) {
  wire::Call call;
  call.set_abort(reason);
  return Ask(std::move(call), absl::InfiniteDuration()).status();
}

// ---- State

absl::Status HostClient::Perform(StateCall* call, absl::Duration timeout) {
  const bool is_of_link = call->where == StateCall::Where::kThisLink;
  {
    MutexLock lock(&mu_);
    if (!is_of_link) BDN_RETURN_IF_ERROR(Check());
    std::vector<StateSubject> subjects;
    for (const uint32_t id : call->subjects()) {
      BDN_ASSIGN_OR_RETURN(const Tensor* const tensor, Find(id));
      subjects.push_back({&tensor->declaration, tensor->pushed, tensor->pending.empty()});
    }
    BDN_RETURN_IF_ERROR(CheckStateCall(*call, subjects));
    if (call->what == StateCall::What::kGetStep) {
      call->step = subjects[0].pushed;
      return absl::OkStatus();
    }
  }
  wire::Call message;
  Write(*call, message.mutable_state());
  Buffer lent;
  if (call->what == StateCall::What::kSet) {
    HostPlace place;
    BDN_ASSIGN_OR_RETURN(lent, Lend(std::as_bytes(call->in), &place));
    Write(place, message.mutable_state()->mutable_data());
  }
  BDN_ASSIGN_OR_RETURN(const wire::Answer answer,
                       Ask(std::move(message), is_of_link ? absl::InfiniteDuration() : timeout,
                           std::as_writable_bytes(call->out)));
  if (call->what == StateCall::What::kGetCounters) call->counters = Read(answer.counters());
  if (call->what == StateCall::What::kSetStep) {
    MutexLock lock(&mu_);
    BDN_ASSIGN_OR_RETURN(Tensor * tensor, Find(call->tensor));
    tensor->pushed = call->step;
  }
  return absl::OkStatus();
}

// ---- What is counted

absl::Status HostClient::CountWhatTheDaemonCounts(Registry* telemetry) {
  wire::Call call;
  call.mutable_stats();
  BDN_ASSIGN_OR_RETURN(const wire::Answer answer, Ask(std::move(call), options_.attach_timeout));
  for (const wire::Number& number : answer.numbers()) {
    const bool is_ours =
        std::any_of(std::begin(kMetrics), std::end(kMetrics),
                    [&](const auto& row) { return row.metric.name == number.name(); });
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

// Empty once the daemon is gone.
std::string HostClient::ReadDaemonsObject(std::string_view name) const {
  wire::Call call;
  call.mutable_stats();
  const auto answer = Ask(std::move(call), kTimeToCount);
  if (!answer.ok()) return "";
  for (const wire::CountedObject& object : answer->objects()) {
    if (object.name() == name) return object.json();
  }
  return "";
}

HostClient::Counts HostClient::counts() const {
  MutexLock lock(&mu_);
  return {.rank = rank_,
          .size = size_,
          .tickets_ended = tickets_.num_ended(),
          .bytes_staged = bytes_staged_,
          .bytes_results = bytes_results_};
}

// Zeros once the daemon is gone.
void HostClient::ReadDaemonsMetrics(std::vector<Sample>* samples) const {
  wire::Call call;
  call.mutable_stats();
  const auto answer = Ask(std::move(call), kTimeToCount);
  std::map<std::string_view, uint64_t> found;
  if (answer.ok()) {
    for (const wire::Number& number : answer->numbers()) found[number.name()] = number.value();
  }
  for (const Metric& metric : daemons_metrics_) samples->push_back({&metric, found[metric.name]});
}

}  // namespace bdn
