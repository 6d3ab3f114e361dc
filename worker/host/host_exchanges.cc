#include "worker/host/host_exchanges.h"

#include <algorithm>
#include <utility>

#include "common/base/status.h"
#include "common/cluster/declaration_list.h"
#include "proto/host.pb.h"
#include "worker/error_fields.h"
#include "worker/host/host_gather.h"
#include "worker/host/host_messages.h"
#include "worker/pipeline/chunked_payload.h"

namespace bdn {
namespace {

namespace wire = bandoneon::host;

DType SumDType(DType dtype) { return dtype == DType::kFloat64 ? dtype : DType::kFloat32; }

}  // namespace

HostExchanges::HostTensor::~HostTensor() {
  if (result.data != nullptr) {
    arena->Free(static_cast<std::byte*>(result.data), result.n * DTypeSize(result.dtype));
  }
  if (left_out != nullptr) arena->Free(left_out, elements * sizeof(float));
}

void HostExchanges::Start(Worker* worker) {
  worker_ = worker;
  MutexLock lock(&mu_);
  rounds_.emplace(processes_->size(), worker->rank());
}

void HostExchanges::Fail(const absl::Status& status) {
  std::vector<HostRound> rounds;
  {
    MutexLock lock(&mu_);
    failed_ = status;
    if (rounds_.has_value()) rounds = rounds_->TakeAll();
  }
  for (const HostRound& round : rounds) EndRound(round, status);
}

// ---- What processes say

absl::Status HostExchanges::OnPushes(const HostProcess& process, const wire::Pushes& pushes) {
  // Complete rounds are collected and started together, so that the worker gets all tensors of a
  // message in one call.
  std::vector<HostRound> complete;
  absl::Status wrong;
  for (const wire::Push& message : pushes.pushes()) {
    BDN_ASSIGN_OR_RETURN(std::optional<HostRound> round, AddPush(process, message, &wrong));
    if (round.has_value()) complete.push_back(*std::move(round));
  }
  StartRounds(std::move(complete));
  // The round can never be complete, and the processes would wait for each other for ever.
  if (!wrong.ok()) abort_(std::string(wrong.message()));
  return absl::OkStatus();
}

absl::StatusOr<std::optional<HostRound>> HostExchanges::AddPush(const HostProcess& process,
                                                                const wire::Push& message,
                                                                absl::Status* wrong) {
  HostPush push{.ticket = message.ticket(),
                .step = message.step(),
                .absent = message.absent(),
                .priority = message.priority(),
                .weight = message.weight(),
                .loss_scale = message.loss_scale(),
                .learning_rate = message.learning_rate(),
                .program_steps = message.program_steps(),
                .wants_left_out = message.left_out()};
  const std::shared_ptr<const Codec> codec = processes_->codec();
  MutexLock lock(&mu_);
  const auto tensor = tensors_.find(message.tensor());
  if (tensor == tensors_.end() || tensor->second->done_with.contains(process.local_rank)) {
    if (message.tensor() >= tensors_end_) {
      return InvalidArgument("it pushed tensor %d, which was not declared", message.tensor());
    }
    // One thread of the process pushed it while another retired it.
    EndPush(process, message.ticket(), Cancelled("its tensor was retired"));
    return std::nullopt;
  }
  const HostTensor& facts = *tensor->second;
  if (!push.absent) {
    if (message.encoded() && codec == nullptr) return InvalidArgument("it has no codec");
    const size_t size = message.encoded() ? ChunkedBytes(*codec, facts.elements)
                                          : facts.elements * DTypeSize(facts.dtype);
    // The place comes from another process, and is checked before anything reads it.
    BDN_ASSIGN_OR_RETURN(auto bytes, process.channel->Resolve(Read(message.data()), size));
    if (message.encoded()) {
      push.codec = codec.get();
      push.payload = bytes.span;
    } else {
      push.data = {bytes.span.data(), facts.dtype, facts.elements};
    }
    push.memory = std::move(bytes.memory);
  }
  absl::StatusOr<std::optional<HostRound>> round =
      failed_.ok() ? rounds_->Add(process.local_rank, message.tensor(), facts.name, std::move(push))
                   : failed_;
  if (round.ok()) return round;
  EndPush(process, message.ticket(), round.status());
  // Aborted means that another process is leaving, which ends this push alone.
  if (absl::IsInvalidArgument(round.status())) *wrong = round.status();
  return std::nullopt;
}

void HostExchanges::EndPush(const HostProcess& process, uint64_t ticket,
                            const absl::Status& status) {
  wire::ToProcess answer;
  answer.mutable_ended()->set_ticket(ticket);
  Write(status, answer.mutable_ended()->mutable_status());
  process.channel->Send(answer);
}

absl::Status HostExchanges::OnRetired(const HostProcess& process, const wire::Retired& retired) {
  std::vector<uint32_t> by_all;
  {
    MutexLock lock(&mu_);
    for (const uint32_t id : retired.tensors()) {
      const auto found = tensors_.find(id);
      if (found == tensors_.end()) {
        return InvalidArgument("it retired tensor %d, which was not declared", id);
      }
      std::set<int>& done_with = found->second->done_with;
      if (!done_with.insert(process.local_rank).second) {
        return InvalidArgument("it retired tensor %d twice", id);
      }
      if (done_with.size() == static_cast<size_t>(processes_->size())) by_all.push_back(id);
    }
  }
  // Without the lock, as the worker is called.
  Retire(by_all);
  return absl::OkStatus();
}

void HostExchanges::Retire(const std::vector<uint32_t>& tensors) {
  if (tensors.empty()) return;
  std::vector<HostRound> rounds;
  std::vector<std::shared_ptr<HostTensor>> gone;
  {
    MutexLock lock(&mu_);
    for (const uint32_t id : tensors) {
      auto tensor = tensors_.extract(id);
      if (tensor.empty()) continue;
      ids_.erase(tensor.mapped()->name);
      gone.push_back(std::move(tensor.mapped()));
      auto round = rounds_->Forget(id);
      if (round.has_value()) rounds.push_back(*std::move(round));
    }
  }
  // These rounds were open, so the worker has nothing of them.
  for (const HostRound& round : rounds) EndRound(round, Cancelled("its tensor was retired"));
  const absl::Status status = worker_->Retire(tensors);
  if (!status.ok()) processes_->peer_log().Warning("retiring tensors: %s", status.message());
}

void HostExchanges::OnLeaving(int process) {
  std::vector<HostRound> rounds;
  {
    MutexLock lock(&mu_);
    rounds = rounds_->OnLeaving(process);
  }
  for (const HostRound& round : rounds) {
    EndRound(round,
             WithFields(Aborted("worker %d is leaving the job and pushes no more: all workers must "
                                "push it equally often",
                                worker_->rank() + process),
                        {.tensor = NameOf(round.tensor), .step = std::to_string(round.step)}));
  }
}

// ---- Rounds

absl::StatusOr<std::shared_ptr<HostExchanges::HostTensor>> HostExchanges::FillRequest(
    const HostRound& round, PushRequest* request) {
  BDN_RETURN_IF_ERROR(Find(round.tensor).status());
  const std::shared_ptr<HostTensor> shared = tensors_.at(round.tensor);
  HostTensor& tensor = *shared;
  *request = round.Request();
  // The exchange consumes the residuals that were set; a process that sets one later begins a new
  // sum.
  tensor.set_by.clear();
  request->data = tensor.result;
  if (!round.wants_left_out()) return shared;
  const size_t bytes = tensor.elements * sizeof(float);
  if (tensor.left_out == nullptr) tensor.left_out = arena_->Allocate(bytes);
  if (tensor.left_out == nullptr) {
    return ResourceExhausted(
        "tensor '%s': %d bytes of shared memory for what its codec leaves out are not to be had",
        tensor.name, bytes);
  }
  request->left_out = reinterpret_cast<float*>(tensor.left_out);
  return shared;
}

void HostExchanges::StartRounds(std::vector<HostRound> rounds) {
  std::vector<std::shared_ptr<const HostRound>> shared;
  std::vector<PushRequest> requests;
  absl::Status status;
  for (HostRound& one : rounds) {
    const auto round = std::make_shared<const HostRound>(std::move(one));
    const absl::Status agrees = round->CheckAgrees(NameOf(round->tensor), worker_->rank());
    if (!agrees.ok()) {
      Refuse(*round, agrees);
      continue;
    }
    shared.push_back(round);
    // The rest of the rounds must still be ended, below.
    if (!status.ok()) continue;
    PushRequest request;
    MutexLock lock(&mu_);
    const auto tensor = FillRequest(*round, &request);
    status = tensor.status();
    if (!status.ok()) continue;
    // The callback holds the tensor, so that its memory is there until the end, even if it is
    // retired meanwhile.
    request.done = [this, round, tensor = *tensor](TicketId, const auto& result) {
      EndRound(*round, result);
    };
    requests.push_back(std::move(request));
  }
  size_t next = 0;
  // The worker stops at the first request that it refuses. That one's round is ended, and the call
  // is repeated behind it.
  while (next < requests.size()) {
    std::vector<TicketId> tickets;
    const absl::Status pushed = worker_->PushPullAll(std::span(requests).subspan(next), &tickets);
    {
      MutexLock lock(&mu_);
      for (const TicketId ticket : tickets) {
        const auto tensor = Find(shared[next++]->tensor);
        if (tensor.ok()) (*tensor)->ticket = ticket;
      }
    }
    if (pushed.ok()) continue;
    // These two are the processes' mistakes, after which they may push again. Any other error is
    // the job's.
    if (!absl::IsInvalidArgument(pushed) && !absl::IsFailedPrecondition(pushed)) {
      status = pushed;
      break;
    }
    const HostRound& round = *shared[next++];
    const absl::Status why(pushed.code(), absl::StrFormat("%s (%s)", pushed.message(),
                                                          round.Describe(worker_->rank())));
    Refuse(round,
           AttachFields(why, {.tensor = NameOf(round.tensor), .step = std::to_string(round.step)}));
  }
  if (status.ok()) return;
  for (; next < shared.size(); ++next) EndRound(*shared[next], status);
  abort_(std::string(status.message()));
}

void HostExchanges::Refuse(const HostRound& round, const absl::Status& why) {
  bool undone;
  {
    MutexLock lock(&mu_);
    // If a process has pushed the next step already, the processes no longer agree about the step,
    // and the job cannot go on.
    undone = rounds_->TakeBack(round);
  }
  EndRound(round, why, undone);
  if (!undone) abort_(std::string(why.message()));
}

void HostExchanges::EndRound(const HostRound& round, const absl::StatusOr<PushResult>& result,
                             bool undone) {
  const std::vector<HostProcessRef> attached = processes_->attached();
  if (attached.empty()) return;  // closed
  std::byte* left_out = nullptr;
  uint64_t bytes = 0;
  {
    MutexLock lock(&mu_);
    const auto tensor = Find(round.tensor);
    if (tensor.ok()) {  // else it was retired, and nobody wants its result
      left_out = (*tensor)->left_out;
      bytes = (*tensor)->elements * sizeof(float);
    }
  }
  for (size_t i = 0; i < round.pushes.size(); ++i) {
    if (!round.pushes[i].has_value()) continue;  // of a round that is not complete
    wire::ToProcess message;
    wire::Ended* ended = message.mutable_ended();
    ended->set_ticket(round.pushes[i]->ticket);
    Write(result.status(), ended->mutable_status());
    ended->set_undone(undone);
    const bool has_left_out = result.ok() && round.pushes[i]->wants_left_out && left_out != nullptr;
    if (result.ok()) {
      ended->set_absent(result->absent);
      ended->set_nonfinite(result->nonfinite);
      ended->set_guessed(result->guessed);
    }
    if (has_left_out) {
      Write(*attached[i]->channel->Find({left_out, bytes}), ended->mutable_left_out());
      ended->set_left_out_share(round.ShareOf(static_cast<int>(i)));
    }
    processes_->Send(*attached[i], message);
  }
}

// ---- Tensors

absl::Status HostExchanges::Add(std::span<const TensorDeclaration> tensors,
                                std::span<const uint32_t> ids) {
  MutexLock lock(&mu_);
  for (size_t i = 0; i < tensors.size(); ++i) {
    const TensorDeclaration& declared = tensors[i];
    // Known already if the processes declare again what they had given up waiting for.
    if (tensors_.contains(ids[i])) continue;
    tensors_end_ = std::max(tensors_end_, ids[i] + 1);
    const size_t bytes = declared.elements * DTypeSize(SumDType(declared.dtype));
    std::byte* const result = arena_->Allocate(bytes);
    if (result == nullptr) {
      return ResourceExhausted(
          "tensor '%s': %d bytes of shared memory for the sum of this host are not to be had; the "
          "daemon needs the size of the model in float32: give it more memory",
          declared.name, bytes);
    }
    std::shared_ptr<HostTensor>& tensor = tensors_[ids[i]];
    tensor = std::make_shared<HostTensor>(arena_);
    ids_[declared.name] = ids[i];
    tensor->name = declared.name;
    tensor->dtype = declared.dtype;
    tensor->elements = declared.elements;
    tensor->result = {result, SumDType(declared.dtype), declared.elements};
  }
  return absl::OkStatus();
}

// Processes declare only tensors that they do not have. So if some have retired a tensor, and all
// declare its name, the others have never learnt of it: their earlier declaration was given up.
void HostExchanges::RetireWhatIsDeclaredAnew(std::span<const TensorDeclaration> tensors) {
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

absl::Status HostExchanges::WithAdvice(absl::Status failure) const {
  MutexLock lock(&mu_);
  for (const auto& [id, tensor] : tensors_) {
    if (tensor->done_with.empty()) continue;
    std::vector<int> done, others;
    for (int process = 0; process < processes_->size(); ++process) {
      (tensor->done_with.contains(process) ? done : others).push_back(process);
    }
    failure = WithAdviceToClose(failure, tensor->name, WorkerNames(done, worker_->rank()),
                                WorkerNames(others, worker_->rank()));
  }
  return failure;
}

std::string HostExchanges::NameOf(uint32_t tensor) const {
  MutexLock lock(&mu_);
  const auto found = Find(tensor);
  return found.ok() ? (*found)->name : "";
}

absl::StatusOr<HostExchanges::HostTensor*> HostExchanges::Find(uint32_t id) const {
  const auto found = tensors_.find(id);
  if (found == tensors_.end()) {
    return NotFound("no tensor %d was declared, or it was retired since", id);
  }
  return found->second.get();
}

absl::StatusOr<uint64_t> HostExchanges::ElementsOf(uint32_t id) const {
  MutexLock lock(&mu_);
  BDN_ASSIGN_OR_RETURN(const HostTensor* const tensor, Find(id));
  return tensor->elements;
}

ByteSpan HostExchanges::ResultOf(uint32_t id) const {
  MutexLock lock(&mu_);
  const MutableView& result = tensors_.at(id)->result;
  return {static_cast<const std::byte*>(result.data), result.n * DTypeSize(result.dtype)};
}

absl::Status HostExchanges::DescribePush(uint32_t id) const {
  TicketId ticket;
  {
    MutexLock lock(&mu_);
    const auto found = tensors_.find(id);
    if (found == tensors_.end()) return NotFound("no tensor %d was declared", id);
    // Processes of this host come first: the worker has nothing of the step before they have all
    // pushed.
    if (rounds_->IsOpen(id)) {
      return WithFields(DeadlineExceeded("still in flight"),
                        {.tensor = found->second->name,
                         .step = std::to_string(rounds_->step(id) + 1),
                         .stage = "assemble",
                         .waiting_for = WorkerNames(rounds_->Missing(id), worker_->rank())});
    }
    ticket = found->second->ticket;
  }
  const absl::Status described = worker_->DescribeWait(ticket);
  // Its ticket has ended in the meantime.
  return absl::IsNotFound(described) ? DeadlineExceeded("still in flight") : described;
}

absl::Status HostExchanges::BeginWhereWorkerStands(wire::Answer* answer) {
  std::vector<uint32_t> ids;
  {
    MutexLock lock(&mu_);
    for (const auto& [id, tensor] : tensors_) ids.push_back(id);
  }
  for (const uint32_t id : ids) {
    BDN_ASSIGN_OR_RETURN(const Step at, BeginWhereWorkerStands(id));
    wire::TensorStep* const step = answer->add_steps();
    step->set_id(id);
    step->set_step(at);
  }
  return absl::OkStatus();
}

absl::StatusOr<Step> HostExchanges::BeginWhereWorkerStands(uint32_t tensor) {
  StateCall call{.what = StateCall::What::kGetStep, .tensor = tensor};
  // Without the lock, as the worker is called.
  BDN_RETURN_IF_ERROR(worker_->Perform(&call, absl::ZeroDuration()));
  MutexLock lock(&mu_);
  BDN_RETURN_IF_ERROR(rounds_->SetStep(tensor, call.step));
  return call.step;
}

// ---- State of the host's link

absl::Status HostExchanges::PerformAtLink(int process, StateCall* call,
                                          std::vector<float>* values) {
  const bool is_of_host =
      call->link_part == LinkState::kResidual || call->link_part == LinkState::kMomentum;
  switch (call->what) {
    case StateCall::What::kGet:
      // One residual for the whole host: the first process saves it, and if each process saved it,
      // a restart would add it up once for each of them.
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

// After a restart with another number of processes for each host, the residuals that several
// workers saved belong to one link, so they are added up.
absl::Status HostExchanges::AddToLink(int process, StateCall* call, std::vector<float>* values) {
  MutexLock one_at_a_time(&setting_);
  std::set<int> set_by;
  {
    MutexLock lock(&mu_);
    BDN_ASSIGN_OR_RETURN(HostTensor* const tensor, Find(call->tensor));
    set_by = tensor->set_by[call->link_part];
  }
  // The second time is a second load of a checkpoint.
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
  // Only after the worker has taken it: a failed call may be made again.
  set_by.insert(process);
  MutexLock lock(&mu_);
  BDN_ASSIGN_OR_RETURN(HostTensor* const tensor, Find(call->tensor));
  tensor->set_by[call->link_part] = std::move(set_by);
  return absl::OkStatus();
}

}  // namespace bdn
