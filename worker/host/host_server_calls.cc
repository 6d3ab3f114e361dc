#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "common/base/log.h"
#include "common/base/status.h"
#include "common/cluster/control_messages.h"
#include "common/cluster/declaration_list.h"
#include "proto/host.pb.h"
#include "worker/error_fields.h"
#include "worker/host/host_messages.h"
#include "worker/host/host_server.h"

// The calls of a host's processes: those that each makes for itself, and those that they make together.

namespace bdn {
namespace {

namespace wire = bandoneon::host;

constexpr size_t kMostOpenCalls = 256;  // of one process
// After which a call that reads what servers hold lets others ask.
constexpr absl::Duration kTurn = absl::Milliseconds(200);

std::span<const float> Floats(ByteSpan bytes) {
  return {reinterpret_cast<const float*>(bytes.data()), bytes.size() / sizeof(float)};
}
std::span<float> Floats(const Buffer& buffer) {
  return {reinterpret_cast<float*>(buffer.data()), buffer.size() / sizeof(float)};
}
// A process can change what it shares while it is read.
std::vector<float> CopyOf(ByteSpan bytes) {
  const std::span<const float> floats = Floats(bytes);
  return {floats.begin(), floats.end()};
}

}  // namespace

// ---- From a message to its thread

std::string HostServer::NameOf(uint32_t tensor) const {
  MutexLock lock(&mu_);
  const auto found = Find(tensor);
  return found.ok() ? (*found)->name : "";
}

absl::StatusOr<HostServer::HostTensor*> HostServer::Find(uint32_t id) const {
  const auto found = tensors_.find(id);
  if (found == tensors_.end()) {
    return NotFound("no tensor %d was declared, or it was retired since", id);
  }
  return found->second.get();
}

absl::StatusOr<uint64_t> HostServer::ElementsOf(uint32_t id) const {
  MutexLock lock(&mu_);
  BDN_ASSIGN_OR_RETURN(const HostTensor* const tensor, Find(id));
  return tensor->elements;
}

// What a call brings along: nothing is there where it is 0.
absl::StatusOr<size_t> HostServer::BytesOfData(const wire::Call& call) const {
  if (call.has_broadcast()) return call.broadcast().has_data() ? call.broadcast().bytes() : 0;
  if (!call.has_state()) return 0;
  BDN_ASSIGN_OR_RETURN(const StateCall asked, Read(call.state()));
  if (asked.what != StateCall::What::kSet) return 0;
  BDN_ASSIGN_OR_RETURN(const HostTensor* const tensor, Find(asked.tensor));
  return bdn::ElementsOf(asked, tensor->elements) * sizeof(float);
}

absl::Status HostServer::OnCall(const ProcessRef& process, wire::Call message) {
  const auto call = std::make_shared<const wire::Call>(std::move(message));
  OpenCall open{process, call, {}, absl::InfiniteFuture()};
  if (call->timeout_ms() >= 0) {
    open.deadline = clock_->Now() + absl::Milliseconds(call->timeout_ms());
  }
  absl::StatusOr<std::optional<HostGather::Members>> members = std::nullopt;
  std::vector<HostRound> rounds;
  std::vector<HostGather::Ended> ended;
  Calls together;
  absl::Status refused;
  bool is_gathered = true;
  {
    MutexLock lock(&mu_);
    if (process->calls.size() >= kMostOpenCalls) {
      return InvalidArgument("it has %d calls open", kMostOpenCalls);
    }
    if (!process->calls.insert(call->id()).second) {
      return InvalidArgument("it made call %d twice", call->id());
    }
    const absl::StatusOr<size_t> bytes = BytesOfData(*call);
    refused = bytes.status();
    if (bytes.ok() && *bytes > 0) {
      const wire::Place& place =
          call->has_broadcast() ? call->broadcast().data() : call->state().data();
      BDN_ASSIGN_OR_RETURN(open.data, process->channel->Resolve(Read(place), *bytes));
    }
    if (refused.ok() && !failed_.ok()) refused = failed_;
    const HostGather::Member member{process->local_rank, call->id(), open.deadline};
    switch (refused.ok() ? call->what_case() : wire::Call::WHAT_NOT_SET) {
      case wire::Call::kDeclare:
        members = gather_->ArriveNext("declaration", member);
        break;
      case wire::Call::kBroadcast:
        members = gather_->ArriveNext("broadcast", member);
        break;
      case wire::Call::kBarrier:
        members = gather_->Arrive(absl::StrFormat("barrier '%s'", call->barrier()), member);
        break;
      case wire::Call::kLeave:
        members = gather_->Arrive(kLeaving, member);
        ended = gather_->OnLeaving(process->local_rank);
        rounds = rounds_->OnLeaving(process->local_rank);
        break;
      default:
        is_gathered = false;
    }
    if (is_gathered) refused = members.status();
    if (is_gathered && refused.ok()) {
      gathered_[{process->local_rank, call->id()}] = open;
      if (members->has_value()) {
        for (const HostGather::Member& one : **members) together.push_back(TakeCall(one));
      }
    }
  }
  EndGathered(ended);
  for (const HostRound& round : rounds) {
    EndRound(round,
             WithFields(Aborted("worker %d is leaving the job and pushes no more: all workers must "
                                "push it equally often",
                                worker_->rank() + process->local_rank),
                        {.tensor = NameOf(round.tensor), .step = std::to_string(round.step)}));
  }
  if (!refused.ok()) {
    Answer(open, {}, refused);
  } else if (!together.empty()) {
    threads_.Run([this, together = std::move(together)] { ServeTogether(together); });
  } else if (!is_gathered) {
    threads_.Run([this, open = std::move(open)] { Serve(open); });
  }
  return absl::OkStatus();
}

HostServer::OpenCall HostServer::TakeCall(const HostGather::Member& member) {
  const auto found = gathered_.find({member.process, member.call});
  OpenCall open = std::move(found->second);
  gathered_.erase(found);
  return open;
}

void HostServer::EndGathered(const std::vector<HostGather::Ended>& ended) {
  for (const HostGather::Ended& one : ended) {
    OpenCall open;
    {
      MutexLock lock(&mu_);
      open = TakeCall(one.member);
    }
    Answer(open, {}, one.status);
  }
}

void HostServer::Answer(const OpenCall& open, wire::Answer answer, const absl::Status& status,
                        Buffer data) {
  answer.set_id(open.call->id());
  Write(status, answer.mutable_status());
  {
    MutexLock lock(&mu_);
    open.process->calls.erase(open.call->id());
    if (open.process->is_gone) return;
    if (status.ok() && !data.empty()) {
      const auto place = open.process->channel->Find(data.span());
      if (place.has_value()) {
        Write(*place, answer.mutable_data());
        open.process->answers[open.call->id()] = std::move(data);
      } else {  // the arena has no more, and the pool took the heap
        Write(ResourceExhausted("the daemon has no shared memory for %d bytes", data.size()),
              answer.mutable_status());
      }
    }
  }
  wire::ToProcess message;
  *message.mutable_answer() = std::move(answer);
  open.process->channel->Send(message);
  if (open.process->channel->has_waiting()) Wake();
}

void HostServer::AnswerAll(const Calls& calls, const absl::Status& status) {
  for (const OpenCall& call : calls) Answer(call, {}, status);
}

// ---- What each asks for itself

void HostServer::Serve(OpenCall open) {
  wire::Answer answer;
  Buffer data;
  const absl::Status status = ServeOne(open, &answer, &data);
  Answer(open, std::move(answer), status, std::move(data));
}

template <typename Body>
absl::Status HostServer::OnServers(const OpenCall& open, bool reads, const Body& body) {
  for (;;) {
    {
      MutexLock lock(&mu_);
      const uint64_t turn = turns_given_++;
      while (turns_over_ < turn) changed_.Wait(&mu_);
    }
    const absl::Duration left = open.deadline - clock_->Now();
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

absl::Status HostServer::ServeOne(const OpenCall& open, wire::Answer* answer, Buffer* data) {
  const wire::Call& call = *open.call;
  switch (call.what_case()) {
    case wire::Call::kAbort:
      return worker_->Abort(absl::StrFormat("%s: %s", NameOf(*open.process), call.abort()));
    case wire::Call::kState:
      return Perform(open, answer, data);
    case wire::Call::kDescribe:
      return DescribePush(call.describe());
    case wire::Call::kStats:
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
      return absl::OkStatus();
    default:
      return Unimplemented("a call of no known kind");
  }
}

absl::Status HostServer::Perform(const OpenCall& open, wire::Answer* answer, Buffer* data) {
  BDN_ASSIGN_OR_RETURN(StateCall call, Read(open.call->state()));
  uint64_t elements = 0;
  for (const uint32_t id : call.subjects()) {
    BDN_ASSIGN_OR_RETURN(elements, ElementsOf(id));
  }
  // Its own array holds no weights that could be equal.
  if (call.what == StateCall::What::kSyncWeights) call.what = StateCall::What::kFetchWeights;
  if (call.fills_out()) {
    *data = pool_.Get(bdn::ElementsOf(call, elements) * sizeof(float));
    call.out = Floats(*data);
  }
  std::vector<float> values;
  if (call.what == StateCall::What::kSet) {
    values = CopyOf(open.data.span);
    call.in = values;
  }
  if (call.where == StateCall::Where::kThisLink) {
    return PerformAtLink(open.process->local_rank, &call, &values);
  }
  BDN_RETURN_IF_ERROR(OnServers(
      open, call.reads(), [&](absl::Duration left) { return worker_->Perform(&call, left); }));
  if (call.what == StateCall::What::kGetCounters) {
    Write(call.counters, answer->mutable_counters());
  }
  return absl::OkStatus();
}

// What the host's link remembers is its first process's to save, and what is the same at all, its
// first process's to set; the replica is everybody's.
absl::Status HostServer::PerformAtLink(int process, StateCall* call, std::vector<float>* values) {
  const bool is_of_host =
      call->link_part == LinkState::kResidual || call->link_part == LinkState::kMomentum;
  switch (call->what) {
    case StateCall::What::kGet:
      if (!is_of_host || process == 0) break;
      std::fill(call->out.begin(), call->out.end(), 0.0f);
      return absl::OkStatus();
    case StateCall::What::kSet:
      if (is_of_host) return AddToLink(process, call, values);
      if (process > 0) return absl::OkStatus();
      break;
    case StateCall::What::kSetStep: {
      MutexLock lock(&mu_);
      BDN_ASSIGN_OR_RETURN(const HostTensor* const tensor, Find(call->tensor));
      BDN_RETURN_IF_ERROR(Annotate(rounds_->SetStep(call->tensor, call->step),
                                   absl::StrFormat("tensor '%s'", tensor->name)));
      break;
    }
    default:
      return InvalidArgument("no call about a host's link, of number %d",
                             static_cast<int>(call->what));
  }
  return worker_->Perform(call, absl::ZeroDuration());
}

// What each worker of a checkpoint owed is owed by the host: the sum. Who sets twice begins anew.
absl::Status HostServer::AddToLink(int process, StateCall* call, std::vector<float>* values) {
  MutexLock one_at_a_time(&setting_);
  std::set<int> set_by;
  {
    MutexLock lock(&mu_);
    BDN_ASSIGN_OR_RETURN(HostTensor* const tensor, Find(call->tensor));
    set_by = tensor->set_by[call->link_part];
  }
  if (set_by.contains(process)) set_by.clear();
  if (!set_by.empty()) {
    std::vector<float> before(values->size());
    StateCall get{.what = StateCall::What::kGet,
                  .tensor = call->tensor,
                  .link_part = call->link_part,
                  .out = before};
    BDN_RETURN_IF_ERROR(worker_->Perform(&get, absl::ZeroDuration()));
    for (size_t i = 0; i < values->size(); ++i) (*values)[i] += before[i];
  }
  BDN_RETURN_IF_ERROR(worker_->Perform(call, absl::ZeroDuration()));
  set_by.insert(process);
  MutexLock lock(&mu_);
  BDN_ASSIGN_OR_RETURN(HostTensor* const tensor, Find(call->tensor));
  tensor->set_by[call->link_part] = std::move(set_by);
  return absl::OkStatus();
}

// ---- What they ask together

void HostServer::ServeTogether(const Calls& calls) {
  const wire::Call& first = *calls.front().call;
  absl::Time deadline = absl::InfinitePast();
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
    AnswerAll(calls, worker_->Barrier(first.barrier(), left));
  } else {
    const absl::Status status = worker_->Leave(left);
    if (status.ok()) {
      MutexLock lock(&mu_);
      for (const OpenCall& call : calls) call.process->has_left = true;
      all_left_ = true;
      is_ending_ = true;
      changed_.SignalAll();
    }
    AnswerAll(calls, status);
  }
}

absl::Status HostServer::Declare(const Calls& calls, std::vector<wire::Answer>* answers) {
  std::vector<std::vector<TensorDeclaration>> lists;
  absl::Time deadline = absl::InfinitePast();
  for (const OpenCall& call : calls) {
    BDN_ASSIGN_OR_RETURN(DeclarationPart part, Read(call.call->declare()));
    for (TensorDeclaration& tensor : part.tensors) {
      if (tensor.kind != KeyKind::kDense) return InvalidArgument("a tensor that is not dense");
      BDN_RETURN_IF_ERROR(TensorTable::Canonicalize(&tensor));
    }
    lists.push_back(std::move(part.tensors));
    deadline = std::max(deadline, call.deadline);
  }
  for (size_t i = 1; i < lists.size(); ++i) {
    const absl::Status same =
        CompareDeclarations(lists[0], absl::StrFormat("worker %d", worker_->rank()), lists[i],
                            absl::StrFormat("worker %d", worker_->rank() + static_cast<Rank>(i)));
    if (!same.ok()) return WithAdvice(same);
  }
  RetireWhatIsDeclaredAnew(lists[0]);
  BDN_ASSIGN_OR_RETURN(const std::vector<uint32_t> ids,
                       worker_->Declare(lists[0], deadline - clock_->Now()));
  const absl::Status added = AddTensors(lists[0], ids);
  if (!added.ok()) {  // the other hosts go on with it
    AbortJob(std::string(added.message()));
    return added;
  }
  absl::flat_hash_map<std::string_view, uint32_t> by_name;
  for (size_t i = 0; i < ids.size(); ++i) by_name[lists[0][i].name] = ids[i];
  MutexLock lock(&mu_);
  for (size_t i = 0; i < lists.size(); ++i) {
    for (const TensorDeclaration& tensor : lists[i]) {
      const uint32_t id = by_name.at(tensor.name);
      const MutableView& result = tensors_.at(id)->result;
      const ByteSpan bytes{static_cast<const std::byte*>(result.data),
                           result.n * DTypeSize(result.dtype)};
      wire::DeclaredTensor* declared = (*answers)[i].add_tensors();
      declared->set_id(id);
      Write(*calls[i].process->channel->Find(bytes), declared->mutable_result());
    }
  }
  return absl::OkStatus();
}

// Processes declare what they do not have. So where some are done with a tensor, and all declare its name,
// the others have never heard of it: their declaration was given up.
void HostServer::RetireWhatIsDeclaredAnew(std::span<const TensorDeclaration> tensors) {
  std::vector<uint32_t> replaced;
  {
    MutexLock lock(&mu_);
    for (const TensorDeclaration& tensor : tensors) {
      const auto id = ids_.find(tensor.name);
      if (id == ids_.end() || tensors_.at(id->second)->done_with.empty()) continue;
      replaced.push_back(id->second);
    }
  }
  Retire(replaced);
}

absl::Status HostServer::WithAdvice(absl::Status failure) const {
  MutexLock lock(&mu_);
  for (const auto& [id, tensor] : tensors_) {
    if (tensor->done_with.empty()) continue;
    std::vector<int> done, others;
    for (int process = 0; process < options_.processes; ++process) {
      (tensor->done_with.contains(process) ? done : others).push_back(process);
    }
    failure = WithAdviceToClose(failure, tensor->name, WorkerNames(done, worker_->rank()),
                                WorkerNames(others, worker_->rank()));
  }
  return failure;
}

absl::Status HostServer::Broadcast(const Calls& calls, Buffer* data) {
  const wire::Broadcast& first = calls.front().call->broadcast();
  absl::Time deadline = absl::InfinitePast();
  for (size_t i = 0; i < calls.size(); ++i) {
    const wire::Broadcast& other = calls[i].call->broadcast();
    if (other.name() != first.name() || other.bytes() != first.bytes() ||
        other.root() != first.root()) {
      return InvalidArgument(
          "broadcast '%s' of %d bytes from root %d by worker %d, and '%s' of %d bytes from root %d by "
          "worker %d: all workers call it in the same order",
          first.name(), first.bytes(), first.root(), worker_->rank(), other.name(), other.bytes(),
          other.root(), worker_->rank() + static_cast<Rank>(i));
    }
    deadline = std::max(deadline, calls[i].deadline);
  }
  *data = pool_.Get(first.bytes());
  const Rank place = first.root() - worker_->rank();
  if (place >= 0 && place < static_cast<Rank>(calls.size())) {
    const ByteSpan given = calls[place].data.span;
    if (given.size() != first.bytes()) {
      return InvalidArgument("broadcast '%s': its root brought no data", first.name());
    }
    std::memcpy(data->data(), given.data(), given.size());
  }
  return worker_->Broadcast(first.name(), data->mutable_span(), first.root(),
                            deadline - clock_->Now());
}

}  // namespace bdn
