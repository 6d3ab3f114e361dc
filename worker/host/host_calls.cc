#include "worker/host/host_calls.h"

#include <algorithm>
#include <cstring>
#include <string_view>

#include "absl/container/flat_hash_map.h"
#include "common/base/log.h"
#include "common/base/status.h"
#include "common/cluster/control_messages.h"
#include "common/cluster/declaration_list.h"
#include "proto/host.pb.h"
#include "worker/host/host_messages.h"

namespace bdn {
namespace {

namespace wire = bandoneon::host;

constexpr size_t kMostOpenCalls = 256;  // of one process
// The time after which a call that reads the servers' state lets other calls ask them.
constexpr absl::Duration kTurn = absl::Milliseconds(200);

std::span<const float> Floats(ByteSpan bytes) {
  return {reinterpret_cast<const float*>(bytes.data()), bytes.size() / sizeof(float)};
}
std::span<float> Floats(const Buffer& buffer) {
  return {reinterpret_cast<float*>(buffer.data()), buffer.size() / sizeof(float)};
}
// Copies floats out of a process's memory, which the process could change while they are read.
std::vector<float> CopyOf(ByteSpan bytes) {
  const std::span<const float> floats = Floats(bytes);
  return {floats.begin(), floats.end()};
}

}  // namespace

HostCalls::HostCalls(std::shared_ptr<ShmArena> arena, const Clock* clock, HostProcesses* processes,
                     HostExchanges* exchanges, CallThreads* threads, DepartedFn departed)
    : clock_(clock),
      pool_(ArenaOrHeap(arena)),
      processes_(processes),
      exchanges_(exchanges),
      threads_(threads),
      departed_(std::move(departed)) {}

void HostCalls::Start(Worker* worker, const Registry* telemetry) {
  worker_ = worker;
  telemetry_ = telemetry;
  MutexLock lock(&mu_);
  gather_.emplace(processes_->size(), worker->rank());
}

void HostCalls::Fail(const absl::Status& status) {
  std::vector<HostGather::Ended> ended;
  {
    MutexLock lock(&mu_);
    failed_ = status;
    if (gather_.has_value()) ended = gather_->TakeAll(status);
  }
  EndGathered(ended);
}

void HostCalls::Clear() {
  MutexLock lock(&mu_);
  gathered_.clear();
  of_processes_.clear();
}

// ---- The polling thread

absl::Status HostCalls::OnCall(const HostProcessRef& process, wire::Call message) {
  const auto call = std::make_shared<const wire::Call>(std::move(message));
  OpenCall open{process, call, {}, absl::InfiniteFuture()};
  if (call->timeout_ms() >= 0) {
    open.deadline = clock_->Now() + absl::Milliseconds(call->timeout_ms());
  }
  absl::Status refused;
  // Registered before anything else, since an answer, even a refusal, removes the registration.
  BDN_RETURN_IF_ERROR(Register(&open, &refused));
  if (!refused.ok()) {
    Answer(open, {}, refused);
    return absl::OkStatus();
  }
  // The polling thread does only the gathering. Everything that may wait runs on a thread of its
  // own, so that this one goes on to read the sockets.
  Arrival arrival = Gather(open);
  EndGathered(arrival.ended);
  if (call->has_leave()) exchanges_->OnLeaving(process->local_rank);
  if (!arrival.refused.ok()) {
    Answer(open, {}, arrival.refused);
  } else if (!arrival.together.empty()) {
    threads_->Run([this, together = std::move(arrival.together)] { ServeTogether(together); });
  } else if (!arrival.is_gathered) {
    threads_->Run([this, open = std::move(open)] { Serve(open); });
  }
  return absl::OkStatus();
}

absl::Status HostCalls::Register(OpenCall* open, absl::Status* refused) {
  const wire::Call& call = *open->call;
  // Before the lock, because it asks the exchanges, which have a lock of their own.
  const absl::StatusOr<size_t> bytes = BytesOfData(call);
  MutexLock lock(&mu_);
  std::set<uint64_t>& calls = of_processes_[open->process->local_rank].open;
  // Each open call may hold a thread, so one process may not have any number of them.
  if (calls.size() >= kMostOpenCalls) {
    return InvalidArgument("it has %d calls open", kMostOpenCalls);
  }
  if (!calls.insert(call.id()).second) {
    return InvalidArgument("it made call %d twice", call.id());
  }
  *refused = bytes.status();
  if (bytes.ok() && *bytes > 0) {
    const wire::Place& place = call.has_broadcast() ? call.broadcast().data() : call.state().data();
    BDN_ASSIGN_OR_RETURN(open->data, open->process->channel->Resolve(Read(place), *bytes));
  }
  return absl::OkStatus();
}

HostCalls::Arrival HostCalls::Gather(const OpenCall& open) {
  const wire::Call& call = *open.call;
  const HostGather::Member member{open.process->local_rank, call.id(), open.deadline};
  absl::StatusOr<std::optional<HostGather::Members>> members = std::nullopt;
  Arrival arrival{.is_gathered = true};
  MutexLock lock(&mu_);
  arrival.refused = failed_;
  if (!failed_.ok()) return arrival;
  switch (call.what_case()) {
    case wire::Call::kDeclare:
      members = gather_->ArriveNext("declaration", member);
      break;
    case wire::Call::kBroadcast:
      // A name is declared by its first broadcast, so those come in one order at all processes.
      members =
          broadcast_.contains(call.broadcast().name())
              ? gather_->Arrive(absl::StrFormat("broadcast '%s'", call.broadcast().name()), member)
              : gather_->ArriveNext("broadcast", member);
      break;
    case wire::Call::kBarrier:
      members = gather_->Arrive(absl::StrFormat("barrier '%s'", call.barrier()), member);
      break;
    case wire::Call::kBoundary:
      members = gather_->Arrive("boundary", member);
      break;
    case wire::Call::kLeave:
      members = gather_->Arrive(kLeaving, member);
      arrival.ended = gather_->OnLeaving(member.process);
      break;
    default:
      arrival.is_gathered = false;
      return arrival;
  }
  arrival.refused = members.status();
  if (!members.ok()) return arrival;
  gathered_[{member.process, member.call}] = open;
  if (members->has_value()) {
    for (const HostGather::Member& one : **members) arrival.together.push_back(TakeCall(one));
  }
  return arrival;
}

absl::StatusOr<size_t> HostCalls::BytesOfData(const wire::Call& call) const {
  if (call.has_broadcast()) return call.broadcast().has_data() ? call.broadcast().bytes() : 0;
  if (!call.has_state()) return 0;
  BDN_ASSIGN_OR_RETURN(const StateCall asked, Read(call.state()));
  if (asked.what != StateCall::What::kSet) return 0;
  BDN_ASSIGN_OR_RETURN(const uint64_t elements, exchanges_->ElementsOf(asked.tensor));
  return ElementsOf(asked, elements) * sizeof(float);
}

HostCalls::OpenCall HostCalls::TakeCall(const HostGather::Member& member) {
  const auto found = gathered_.find({member.process, member.call});
  OpenCall open = std::move(found->second);
  gathered_.erase(found);
  return open;
}

void HostCalls::EndGathered(const std::vector<HostGather::Ended>& ended) {
  for (const HostGather::Ended& one : ended) {
    OpenCall open;
    {
      MutexLock lock(&mu_);
      open = TakeCall(one.member);
    }
    Answer(open, {}, one.status);
  }
}

void HostCalls::Answer(const OpenCall& open, wire::Answer answer, const absl::Status& status,
                       Buffer data) {
  const HostProcess& process = *open.process;
  answer.set_id(open.call->id());
  Write(status, answer.mutable_status());
  {
    MutexLock lock(&mu_);
    OfProcess& of_process = of_processes_[process.local_rank];
    of_process.open.erase(open.call->id());
    // Nobody will say that the data was taken.
    if (gone_.contains(process.local_rank)) return;
    if (status.ok() && !data.empty()) {
      const auto place = process.channel->Find(data.span());
      if (place.has_value()) {
        Write(*place, answer.mutable_data());
        of_process.answers[open.call->id()] = std::move(data);
      } else {  // the arena has no more memory, and the pool took the heap
        Write(ResourceExhausted("the daemon has no shared memory for %d bytes", data.size()),
              answer.mutable_status());
      }
    }
  }
  wire::ToProcess message;
  *message.mutable_answer() = std::move(answer);
  processes_->Send(process, message);
}

void HostCalls::AnswerAll(const Calls& calls, const absl::Status& status) {
  for (const OpenCall& call : calls) Answer(call, {}, status);
}

void HostCalls::OnTaken(const HostProcess& process, uint64_t call) {
  Buffer taken;  // destroyed after the lock is released
  MutexLock lock(&mu_);
  std::map<uint64_t, Buffer>& answers = of_processes_[process.local_rank].answers;
  const auto found = answers.find(call);
  if (found == answers.end()) return;
  taken = std::move(found->second);
  answers.erase(found);
}

void HostCalls::OnGone(const HostProcess& process) {
  MutexLock lock(&mu_);
  gone_.insert(process.local_rank);
  of_processes_[process.local_rank].answers.clear();
}

std::string HostCalls::OnTime() {
  std::vector<HostGather::Ended> ended;
  {
    MutexLock lock(&mu_);
    if (!failed_.ok()) return "";
    ended = gather_->Expire(clock_->Now());
  }
  std::string reason;
  for (const HostGather::Ended& one : ended) {
    // The process counts as leaving, and the others can do nothing without it.
    if (one.was_leaving) reason = std::string(one.status.message());
  }
  EndGathered(ended);
  return reason;
}

absl::Time HostCalls::NextTime() const {
  MutexLock lock(&mu_);
  return gather_->NextDeadline();
}

// ---- What each asks for itself

void HostCalls::Serve(OpenCall open) {
  if (open.call->what_case() == wire::Call::kDepart) return Depart(open);
  wire::Answer answer;
  Buffer data;
  const absl::Status status = ServeOne(open, &answer, &data);
  Answer(open, std::move(answer), status, std::move(data));
}

template <typename Body>
absl::Status HostCalls::OnServers(const OpenCall& open, bool reads, const Body& body) {
  for (;;) {
    {
      MutexLock lock(&mu_);
      // A queue of turns: the calls run one at a time, in the order in which they came here.
      const uint64_t turn = turns_given_++;
      while (turns_over_ < turn) changed_.Wait(&mu_);
    }
    const absl::Duration left = open.deadline - clock_->Now();
    // A call that reads gives its turn up after kTurn and queues again, since it may wait for
    // weights that a later call is to set.
    const absl::Status status = body(reads ? std::min(left, kTurn) : left);
    {
      MutexLock lock(&mu_);
      ++turns_over_;
      changed_.SignalAll();
    }
    const bool goes_on = reads && absl::IsDeadlineExceeded(status) && clock_->Now() < open.deadline;
    if (!goes_on) return status;
  }
}

absl::Status HostCalls::ServeOne(const OpenCall& open, wire::Answer* answer, Buffer* data) {
  const wire::Call& call = *open.call;
  switch (call.what_case()) {
    case wire::Call::kAbort:
      return worker_->Abort(
          absl::StrFormat("%s: %s", processes_->NameOf(*open.process), call.abort()));
    case wire::Call::kState:
      return Perform(open, answer, data);
    case wire::Call::kDescribe:
      return exchanges_->DescribePush(call.describe());
    case wire::Call::kStats:
      TellStats(answer);
      return absl::OkStatus();
    default:
      return Unimplemented("a call of no known kind");
  }
}

void HostCalls::Depart(const OpenCall& open) {
  MutexLock one_at_a_time(&departing_);
  if (departs_) return Answer(open, {}, absl::OkStatus());
  const std::string reason =
      absl::StrFormat("%s: %s", processes_->NameOf(*open.process), open.call->depart());
  // Before it: the news that this host is out may be here before the answer.
  departs_ = true;
  const absl::Status status = worker_->Depart(reason);
  departs_ = status.ok();
  // Before the others hear of it, and this process with them.
  Answer(open, {}, status);
  if (status.ok()) departed_(reason);
}

void HostCalls::TellStats(wire::Answer* answer) const {
  for (const Sample& sample : telemetry_->Collect()) {
    wire::Number* number = answer->add_numbers();
    number->set_name(sample.metric->name);
    number->set_kind(static_cast<uint32_t>(sample.metric->kind));
    number->set_help(sample.metric->help);
    number->set_value(sample.value);
  }
  for (auto& [name, json] : telemetry_->Objects()) {
    wire::CountedObject* object = answer->add_objects();
    object->set_name(name);
    object->set_json(std::move(json));
  }
}

absl::Status HostCalls::Perform(const OpenCall& open, wire::Answer* answer, Buffer* data) {
  BDN_ASSIGN_OR_RETURN(StateCall call, Read(open.call->state()));
  uint64_t elements = 0;
  for (const uint32_t id : call.subjects()) {
    BDN_ASSIGN_OR_RETURN(elements, exchanges_->ElementsOf(id));
  }
  // The daemon's array holds no weights that could be equal, so a fetch of all of them is made.
  if (call.what == StateCall::What::kSyncWeights) call.what = StateCall::What::kFetchWeights;
  if (call.fills_out()) {
    *data = pool_.Get(ElementsOf(call, elements) * sizeof(float));
    call.out = Floats(*data);
  }
  std::vector<float> values;
  if (call.what == StateCall::What::kSet) {
    values = CopyOf(open.data.span);
    call.in = values;
  }
  if (call.where == StateCall::Where::kThisLink) {
    // Needs no turn: no server is asked.
    return exchanges_->PerformAtLink(open.process->local_rank, &call, &values);
  }
  BDN_RETURN_IF_ERROR(OnServers(
      open, call.reads(), [&](absl::Duration left) { return worker_->Perform(&call, left); }));
  if (call.what == StateCall::What::kGetCounters) {
    Write(call.counters, answer->mutable_counters());
  }
  return absl::OkStatus();
}

// ---- What they ask together

void HostCalls::ServeTogether(const Calls& calls) {
  const wire::Call& first = *calls.front().call;
  absl::Time deadline = absl::InfinitePast();
  // The longest of the deadlines: each process gives up by its own.
  for (const OpenCall& call : calls) deadline = std::max(deadline, call.deadline);
  const absl::Duration left = deadline - clock_->Now();
  if (first.has_declare()) {
    std::vector<wire::Answer> answers(calls.size());
    const absl::Status status = Declare(calls, &answers);
    for (size_t i = 0; i < calls.size(); ++i) Answer(calls[i], std::move(answers[i]), status);
  } else if (first.has_broadcast()) {
    Buffer data;
    const absl::Status status = Broadcast(calls, &data);
    for (const OpenCall& call : calls) Answer(call, {}, status, data);
  } else if (first.what_case() == wire::Call::kBarrier) {
    const absl::StatusOr<std::vector<Rank>> present = worker_->Meet(first.barrier(), left);
    wire::Answer answer;
    if (present.ok()) answer.mutable_present()->Add(present->begin(), present->end());
    for (const OpenCall& call : calls) Answer(call, answer, present.status());
  } else if (first.has_boundary()) {
    wire::Answer answer;
    const absl::Status status = Boundary(left, &answer);
    for (const OpenCall& call : calls) Answer(call, answer, status);
  } else {
    const absl::Status status = worker_->Leave(left);
    if (status.ok()) processes_->SetAllLeft();
    AnswerAll(calls, status);
  }
}

absl::Status HostCalls::Boundary(absl::Duration timeout, wire::Answer* answer) {
  const bool was_candidate = worker_->is_candidate();
  BDN_ASSIGN_OR_RETURN(const std::vector<Rank> newcomers, worker_->Boundary(timeout));
  answer->mutable_present()->Add(newcomers.begin(), newcomers.end());
  return was_candidate ? exchanges_->BeginWhereWorkerStands(answer) : absl::OkStatus();
}

absl::Status HostCalls::Declare(const Calls& calls, std::vector<wire::Answer>* answers) {
  std::vector<std::vector<TensorDeclaration>> lists;
  absl::Time deadline = absl::InfinitePast();
  for (const OpenCall& call : calls) {
    BDN_ASSIGN_OR_RETURN(DeclarationPart part, Read(call.call->declare()));
    for (TensorDeclaration& tensor : part.tensors) {
      if (tensor.kind != KeyKind::kDense) return InvalidArgument("a tensor that is not dense");
      // Here, and not only in the worker, so that declarations that mean the same compare equal.
      BDN_RETURN_IF_ERROR(TensorTable::Canonicalize(&tensor));
    }
    lists.push_back(std::move(part.tensors));
    deadline = std::max(deadline, call.deadline);
  }
  for (size_t i = 1; i < lists.size(); ++i) {
    const absl::Status same =
        CompareDeclarations(lists[0], absl::StrFormat("worker %d", worker_->rank()), lists[i],
                            absl::StrFormat("worker %d", worker_->rank() + static_cast<Rank>(i)));
    if (!same.ok()) return exchanges_->WithAdvice(same);
  }
  exchanges_->RetireWhatIsDeclaredAnew(lists[0]);
  BDN_ASSIGN_OR_RETURN(const std::vector<uint32_t> ids,
                       worker_->Declare(lists[0], deadline - clock_->Now()));
  const absl::Status added = exchanges_->Add(lists[0], ids);
  if (!added.ok()) {  // the other hosts go on with the tensors
    threads_->Run([this, added] { (void)worker_->Abort(std::string(added.message())); });
    return added;
  }
  // Processes may declare the tensors in different orders.
  absl::flat_hash_map<std::string_view, uint32_t> by_name;
  absl::flat_hash_map<uint32_t, Step> steps;
  for (size_t i = 0; i < ids.size(); ++i) {
    by_name[lists[0][i].name] = ids[i];
    BDN_ASSIGN_OR_RETURN(steps[ids[i]], exchanges_->BeginWhereWorkerStands(ids[i]));
  }
  for (size_t i = 0; i < lists.size(); ++i) {
    for (const TensorDeclaration& tensor : lists[i]) {
      const uint32_t id = by_name.at(tensor.name);
      const ByteSpan bytes = exchanges_->ResultOf(id);
      wire::DeclaredTensor* declared = (*answers)[i].add_tensors();
      declared->set_id(id);
      declared->set_step(steps.at(id));
      Write(*calls[i].process->channel->Find(bytes), declared->mutable_result());
    }
  }
  return absl::OkStatus();
}

absl::Status HostCalls::Broadcast(const Calls& calls, Buffer* data) {
  const wire::Broadcast& first = calls.front().call->broadcast();
  absl::Time deadline = absl::InfinitePast();
  for (size_t i = 0; i < calls.size(); ++i) {
    const wire::Broadcast& other = calls[i].call->broadcast();
    if (other.name() != first.name() || other.bytes() != first.bytes() ||
        other.root() != first.root()) {
      return InvalidArgument(
          "broadcast '%s' of %d bytes from root %d by worker %d, and '%s' of %d bytes from root %d "
          "by worker %d: all workers call it in the same order",
          first.name(), first.bytes(), first.root(), worker_->rank(), other.name(), other.bytes(),
          other.root(), worker_->rank() + static_cast<Rank>(i));
    }
    deadline = std::max(deadline, calls[i].deadline);
  }
  // A candidate's processes keep what they have.
  if (worker_->is_candidate()) return absl::OkStatus();
  *data = pool_.Get(first.bytes());
  // The root's bytes come from its process, if that is one of this host's.
  const Rank place = first.root() - worker_->rank();
  if (place >= 0 && place < static_cast<Rank>(calls.size())) {
    const ByteSpan given = calls[place].data.span;
    if (given.size() != first.bytes()) {
      return InvalidArgument("broadcast '%s': its root brought no data", first.name());
    }
    std::memcpy(data->data(), given.data(), given.size());
  }
  BDN_RETURN_IF_ERROR(worker_->Broadcast(first.name(), data->mutable_span(), first.root(),
                                         deadline - clock_->Now()));
  MutexLock lock(&mu_);
  broadcast_.insert(first.name());
  return absl::OkStatus();
}

}  // namespace bdn
