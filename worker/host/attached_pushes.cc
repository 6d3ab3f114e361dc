#include "worker/host/attached_pushes.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "common/base/status.h"
#include "common/cluster/declaration_list.h"
#include "compressors/codec_schedule.h"
#include "kernels/float_kernels.h"
#include "proto/host.pb.h"
#include "worker/host/host_messages.h"
#include "worker/pipeline/chunked_payload.h"
#include "worker/push_check.h"
#include "worker/tensor_table.h"

namespace bdn {
namespace {

namespace wire = bandoneon::host;

// Results of at least this size are written past the caches: they would not be in a core's cache
// any more when they are used.
constexpr size_t kStreamBytes = size_t{1} << 20;
// The elements of a result that are copied between two signs of life: a large result may take
// longer than a lease to copy.
constexpr size_t kElementsAtATime = size_t{16} << 20;

absl::Status NotDeclared(uint32_t tensor) {
  return NotFound("no tensor %d was declared, or it was retired since", tensor);
}

absl::Status WasRetired(const TensorDeclaration& tensor) {
  return Cancelled("tensor '%s' was retired", tensor.name);
}

}  // namespace

AttachedPushes::AttachedPushes(std::shared_ptr<const Codec> codec, std::shared_ptr<ShmArena> arena,
                               DaemonChannel* channel, const Clock* clock)
    : codec_(std::move(codec)), arena_(std::move(arena)), channel_(channel), tickets_(clock) {}

// ---- Taking part

absl::Status AttachedPushes::Check() const {
  MutexLock lock(&mu_);
  return CheckLocked();
}

absl::Status AttachedPushes::CheckLocked() const {
  if (!over_.ok()) return over_;
  if (is_leaving_) return FailedPrecondition("worker %d is leaving the job", channel_->rank());
  return absl::OkStatus();
}

absl::Status AttachedPushes::CheckIdle() const {
  MutexLock lock(&mu_);
  BDN_RETURN_IF_ERROR(CheckLocked());
  for (const auto& [id, tensor] : tensors_) {
    if (!tensor.pending.empty()) return InFlightAtBoundary(tensor.declaration.name);
  }
  return absl::OkStatus();
}

absl::Status AttachedPushes::BeginLeaving() {
  MutexLock lock(&mu_);
  BDN_RETURN_IF_ERROR(over_);
  is_leaving_ = true;
  return absl::OkStatus();
}

void AttachedPushes::EndLeaving() {
  MutexLock lock(&mu_);
  is_leaving_ = !over_.ok();
}

void AttachedPushes::Fail(const absl::Status& status) {
  std::vector<TicketTable::Ended> ended;
  {
    MutexLock lock(&mu_);
    // Before the tickets end, so that no thread pushes again in between.
    over_ = status;
    for (auto& [id, tensor] : tensors_) {
      for (const auto& pending : tensor.pending) {
        tickets_.EndPart(pending->ticket, {.status = status}, &ended);
      }
      tensor.pending.clear();
    }
    tensor_of_.clear();
  }
  tickets_.Deliver(ended);
}

// ---- Tensors

absl::StatusOr<std::vector<TensorDeclaration>> AttachedPushes::FindNew(
    std::vector<TensorDeclaration>* tensors) const {
  std::vector<TensorDeclaration> fresh;
  MutexLock lock(&mu_);
  BDN_RETURN_IF_ERROR(CheckLocked());
  for (TensorDeclaration& tensor : *tensors) {
    BDN_RETURN_IF_ERROR(TensorTable::Canonicalize(&tensor));
    const auto known = ids_.find(tensor.name);
    if (known == ids_.end()) {
      fresh.push_back(tensor);
      continue;
    }
    const TensorDeclaration& before = tensors_.at(known->second).declaration;
    if (before == tensor) continue;
    return InvalidArgument("tensor '%s' was declared with %s, and now with %s", tensor.name,
                           DescribeDifference(before, tensor), DescribeDifference(tensor, before));
  }
  return fresh;
}

absl::StatusOr<std::vector<uint32_t>> AttachedPushes::Add(
    std::span<const TensorDeclaration> tensors, std::vector<TensorDeclaration> fresh,
    const wire::Answer& answer) {
  if (static_cast<size_t>(answer.tensors_size()) != fresh.size()) {
    return Internal("the daemon declared %d tensors, of %d", answer.tensors_size(), fresh.size());
  }
  MutexLock lock(&mu_);
  for (size_t i = 0; i < fresh.size(); ++i) {
    const wire::DeclaredTensor& declared = answer.tensors(static_cast<int>(i));
    Tensor& tensor = tensors_[declared.id()];
    const bool is_double = fresh[i].dtype == DType::kFloat64;
    const size_t bytes = fresh[i].elements * (is_double ? sizeof(double) : sizeof(float));
    // The daemon says in which of its memory the results will be.
    BDN_ASSIGN_OR_RETURN(tensor.result, channel_->Resolve(Read(declared.result()), bytes));
    BDN_ASSIGN_OR_RETURN(const CodecSchedule push, ParseCodecSchedule(fresh[i].push_spec.str()));
    tensor.pushed = declared.step();
    tensor.keeps_left_out = fresh[i].momentum > 0 || push.last().error_feedback;
    ids_[fresh[i].name] = declared.id();
    tensor.declaration = std::move(fresh[i]);
  }
  std::vector<uint32_t> ids;
  for (const TensorDeclaration& tensor : tensors) ids.push_back(ids_.at(tensor.name));
  return ids;
}

absl::StatusOr<TensorFacts> AttachedPushes::FactsOf(uint32_t id) const {
  MutexLock lock(&mu_);
  BDN_ASSIGN_OR_RETURN(const Tensor* const tensor, Find(id));
  const TensorDeclaration& declared = tensor->declaration;
  return TensorFacts{.name = declared.name,
                     .dtype = declared.dtype,
                     .elements = declared.elements,
                     .codec_for_devices = nullptr};
}

absl::StatusOr<const AttachedPushes::Tensor*> AttachedPushes::Find(uint32_t tensor) const {
  const auto found = tensors_.find(tensor);
  if (found != tensors_.end() && !found->second.retired) return &found->second;
  return NotDeclared(tensor);
}

absl::StatusOr<AttachedPushes::Tensor*> AttachedPushes::Find(uint32_t tensor) {
  const auto found = tensors_.find(tensor);
  if (found != tensors_.end() && !found->second.retired) return &found->second;
  return NotDeclared(tensor);
}

// Retires tensors. A push that the daemon has goes on, because other hosts may wait for it; pushes
// that have not begun are not sent.
absl::Status AttachedPushes::Retire(std::span<const uint32_t> tensors) {
  wire::ToDaemon message;
  std::vector<TicketTable::Ended> ended;
  {
    MutexLock lock(&mu_);
    if (!over_.ok()) return absl::OkStatus();  // the daemon forgets all tensors
    for (const uint32_t id : tensors) {
      const auto found = tensors_.find(id);
      if (found == tensors_.end() || found->second.retired) continue;
      Tensor& tensor = found->second;
      message.mutable_retired()->add_tensors(id);
      tensor.retired = true;
      ids_.erase(tensor.declaration.name);
      // From the back: only the front can be taken, and it stays.
      while (!tensor.pending.empty() && !tensor.pending.back()->is_taken) {
        const TicketId ticket = tensor.pending.back()->ticket;
        tensor_of_.erase(ticket);
        tickets_.EndPart(ticket, {.status = WasRetired(tensor.declaration)}, &ended);
        tensor.pending.pop_back();
      }
      RemoveIfUnused(id);
    }
    // Sent under the lock, and so before a declaration of these names.
    if (message.has_retired()) channel_->Send(message);
  }
  tickets_.Deliver(ended);
  return absl::OkStatus();
}

void AttachedPushes::RemoveIfUnused(uint32_t id) {
  const auto found = tensors_.find(id);
  const Tensor& tensor = found->second;
  if (!tensor.retired || !tensor.pending.empty()) return;
  if (tensor.staging != nullptr) arena_->Free(tensor.staging, StagingBytes(tensor.declaration));
  tensors_.erase(found);
}

absl::Status AttachedPushes::CheckState(StateCall* call) const {
  MutexLock lock(&mu_);
  // The step and the link's state may be read even while the process leaves, as for a last
  // checkpoint.
  if (call->where == StateCall::Where::kServer) BDN_RETURN_IF_ERROR(CheckLocked());
  std::vector<StateSubject> subjects;
  for (const uint32_t id : call->subjects()) {
    BDN_ASSIGN_OR_RETURN(const Tensor* const tensor, Find(id));
    subjects.push_back({&tensor->declaration, tensor->pushed, tensor->pending.empty()});
  }
  BDN_RETURN_IF_ERROR(CheckStateCall(*call, subjects));
  if (call->what == StateCall::What::kGetStep) call->step = subjects[0].pushed;
  return absl::OkStatus();
}

absl::Status AttachedPushes::SetStep(uint32_t id, Step step) {
  MutexLock lock(&mu_);
  BDN_ASSIGN_OR_RETURN(Tensor * tensor, Find(id));
  tensor->pushed = step;
  return absl::OkStatus();
}

// ---- Pushes

absl::StatusOr<TicketId> AttachedPushes::Deposit(PushRequest* request, std::vector<Ready>* ready) {
  BDN_RETURN_IF_ERROR(CheckLocked());
  // At once, and not when all processes of the host have pushed it.
  if (channel_->is_candidate()) return NotInYet(channel_->rank());
  BDN_ASSIGN_OR_RETURN(Tensor * tensor, Find(request->tensor));
  const TensorDeclaration& declared = tensor->declaration;
  if (request->sources != nullptr) {
    return Unimplemented("tensor '%s': a sum of sources is for the daemon to push", declared.name);
  }
  CompleteRequest(declared, request);
  BDN_RETURN_IF_ERROR(CheckRequest(*request, declared));
  if (request->left_out != nullptr && tensor->keeps_left_out) return KeepsLeftOut(declared.name);
  const size_t bytes = declared.elements * DTypeSize(declared.dtype);
  const ByteSpan data{static_cast<const std::byte*>(request->data.data), bytes};
  const bool is_shared =
      request->absent || (!IsEncoded(declared) && channel_->Find(data).has_value());
  // Allocated here, where an error can still refuse the push, and not when it is sent.
  if (!is_shared && tensor->staging == nullptr) {
    tensor->staging = arena_->Allocate(StagingBytes(declared));
    if (tensor->staging == nullptr) {
      return ResourceExhausted(
          "tensor '%s': %d bytes of shared memory for the daemon to read are not to be had: give "
          "this process more memory, or let its gradients lie in memory of bdn_alloc",
          declared.name, StagingBytes(declared));
    }
  }
  auto pending = std::make_shared<Pending>();
  // All checks are done; the push takes its step.
  pending->step = ++tensor->pushed;
  pending->ticket = tickets_.Open({.tensor = request->tensor,
                                   .step = pending->step,
                                   .parts = 1,
                                   .done = std::move(request->done)});
  pending->request = std::move(*request);
  tensor_of_[pending->ticket] = pending->request.tensor;
  tensor->pending.push_back(pending);
  TakeReady(tensor, ready);
  return pending->ticket;
}

void AttachedPushes::TakeReady(Tensor* tensor, std::vector<Ready>* ready) {
  // One push of a tensor at a time is with the daemon: results and staging memory are one for each
  // tensor.
  if (tensor->pending.empty() || tensor->pending.front()->is_taken) return;
  tensor->pending.front()->is_taken = true;
  ready->push_back({tensor, tensor->pending.front()});
}

bool AttachedPushes::IsEncoded(const TensorDeclaration& tensor) const {
  return codec_ != nullptr && tensor.dtype != DType::kFloat64;
}

size_t AttachedPushes::StagingBytes(const TensorDeclaration& tensor) const {
  const size_t raw = tensor.elements * DTypeSize(tensor.dtype);
  return IsEncoded(tensor) ? std::max(raw, ChunkedBytes(*codec_, tensor.elements)) : raw;
}

uint64_t AttachedPushes::PutInPlace(const Ready& ready, wire::Push* push) const {
  const TensorDeclaration& declared = ready.tensor->declaration;
  const ConstView data = ready.pending->request.data;
  std::byte* const staging = ready.tensor->staging;
  if (IsEncoded(declared)) {
    const size_t size = ChunkedBytes(*codec_, data.n);
    const auto draw = [&](uint32_t chunk) {
      return Draw({.run_seed = channel_->run_seed(),
                   .tensor_name_hash = Draw::HashName(declared.name),
                   .partition = chunk,
                   .step = ready.pending->step,
                   .purpose = DrawPurpose::kHostEncode,
                   .rank = channel_->rank()});
    };
    if (EncodeChunks(*codec_, data, draw, {staging, size}).ok()) {
      push->set_encoded(true);
      Write(*channel_->Find({staging, size}), push->mutable_data());
      return size;
    }
    // A gradient that is not finite has no payload. It goes unencoded, so that all workers hear of
    // it.
  }
  const size_t bytes = data.n * DTypeSize(data.dtype);
  const auto place = channel_->Find({static_cast<const std::byte*>(data.data), bytes});
  if (place.has_value()) {
    Write(*place, push->mutable_data());
    return 0;
  }
  // Without the lock: only the thread that has taken the push uses the tensor's staging memory.
  std::memcpy(staging, data.data, bytes);
  Write(*channel_->Find({staging, bytes}), push->mutable_data());
  return bytes;
}

void AttachedPushes::SendPushes(std::span<const Ready> pushes) {
  if (pushes.empty()) return;
  wire::ToDaemon message;
  uint64_t staged = 0;
  for (const Ready& ready : pushes) {
    const PushRequest& request = ready.pending->request;
    wire::Push* push = message.mutable_pushes()->add_pushes();
    push->set_tensor(request.tensor);
    push->set_ticket(ready.pending->ticket);
    push->set_step(ready.pending->step);
    push->set_absent(request.absent);
    push->set_priority(request.priority);
    push->set_weight(request.weight);
    push->set_loss_scale(request.loss_scale);
    push->set_learning_rate(request.learning_rate);
    push->set_program_steps(request.program_steps);
    push->set_left_out(request.left_out != nullptr);
    if (!request.absent) staged += PutInPlace(ready, push);
  }
  {
    MutexLock lock(&mu_);
    bytes_staged_ += staged;
  }
  channel_->Send(message);
}

absl::Status AttachedPushes::PushPullAll(std::span<PushRequest> requests,
                                         std::vector<TicketId>* tickets) {
  std::vector<Ready> ready;
  absl::Status status;
  tickets->clear();
  {
    MutexLock lock(&mu_);
    for (PushRequest& request : requests) {
      const absl::StatusOr<TicketId> ticket = Deposit(&request, &ready);
      status = ticket.status();
      if (!status.ok()) break;
      tickets->push_back(*ticket);
    }
  }
  // Without the lock, as it copies or encodes. Also after an error: the pushes before the refused
  // one are in flight.
  SendPushes(ready);
  return status;
}

// ---- Results, on the receiving thread

absl::Status AttachedPushes::OnEnded(const wire::Ended& ended) {
  const Tensor* tensor = nullptr;
  std::shared_ptr<Pending> pending;
  {
    MutexLock lock(&mu_);
    const auto found = tensor_of_.find(ended.ticket());
    if (found == tensor_of_.end()) return absl::OkStatus();  // it has failed meanwhile
    tensor = &tensors_.at(found->second);
    pending = tensor->pending.front();
    // The daemon ends the pushes of a tensor in order; anything else is a mistake of the daemon.
    if (pending->ticket != ended.ticket()) {
      return InvalidArgument("push %d has ended before those in front of it", ended.ticket());
    }
  }
  const absl::Status status = Read(ended.status());
  if (status.ok()) {
    if (ended.has_left_out() && pending->request.left_out != nullptr) {
      const size_t n = tensor->declaration.elements;
      BDN_ASSIGN_OR_RETURN(const auto left_out,
                           channel_->Resolve(Read(ended.left_out()), n * sizeof(float)));
      ConvertScaled({left_out.span.data(), DType::kFloat32, n}, ended.left_out_share(),
                    {pending->request.left_out, DType::kFloat32, n});
    }
    // The daemon may have given the memory of a retired tensor's result to another tensor by now.
    bool retired;
    {
      MutexLock lock(&mu_);
      retired = tensor->retired;
    }
    if (!retired) CopyResult(*tensor, *pending, ended);
  }
  std::vector<TicketTable::Ended> tickets;
  std::vector<Ready> ready;
  {
    MutexLock lock(&mu_);
    const auto found = tensor_of_.find(ended.ticket());
    if (found == tensor_of_.end()) return absl::OkStatus();
    const uint32_t id = found->second;
    Tensor& mutable_tensor = tensors_.at(id);
    tensor_of_.erase(found);
    mutable_tensor.pending.pop_front();
    // The result was not copied, so its caller must not take it for one.
    const bool is_lost = status.ok() && mutable_tensor.retired;
    tickets_.EndPart(ended.ticket(),
                     {.status = is_lost ? WasRetired(mutable_tensor.declaration) : status,
                      .absent = ended.absent(),
                      .nonfinite = ended.nonfinite(),
                      .guessed = ended.guessed()},
                     &tickets);
    if (!status.ok() && ended.undone()) {
      // The step was not exchanged and may be pushed again. The pushes behind it were meant for
      // later steps, so they end, too.
      for (const auto& behind : mutable_tensor.pending) {
        tensor_of_.erase(behind->ticket);
        tickets_.EndPart(behind->ticket, {.status = status}, &tickets);
      }
      mutable_tensor.pending.clear();
      mutable_tensor.pushed = pending->step - 1;
    }
    // The next push may go now, and its sending comes before the callbacks, which may take long.
    TakeReady(&mutable_tensor, &ready);
    RemoveIfUnused(id);
  }
  SendPushes(ready);
  tickets_.Deliver(tickets);
  return absl::OkStatus();
}

void AttachedPushes::CopyResult(const Tensor& tensor, const Pending& pending,
                                const wire::Ended& ended) {
  const MutableView to = pending.request.data;
  if (to.data == nullptr || ended.absent()) return;
  const bool is_double = to.dtype == DType::kFloat64;
  const ConstView from{tensor.result.span.data(), is_double ? DType::kFloat64 : DType::kFloat32,
                       to.n};
  // An aggregate is in units of the scaled gradient; weights have no loss scale.
  const bool is_aggregate = tensor.declaration.rule.str() == "mean";
  const float scale = is_aggregate ? pending.request.loss_scale : 1.0f;
  const bool streams = to.dtype == DType::kFloat32 && to.n * sizeof(float) >= kStreamBytes;
  for (size_t at = 0; at < to.n; at += kElementsAtATime) {
    const size_t n = std::min(kElementsAtATime, to.n - at);
    const ConstView source{tensor.result.span.data() + at * DTypeSize(from.dtype), from.dtype, n};
    const MutableView part{static_cast<std::byte*>(to.data) + at * DTypeSize(to.dtype), to.dtype,
                           n};
    if (streams) {
      StreamScaled(source.f32(), scale, static_cast<float*>(part.data), n);
    } else {
      ConvertScaled(source, scale, part);
    }
    channel_->SayAlive();
  }
  MutexLock lock(&mu_);
  bytes_results_ += to.n * DTypeSize(to.dtype);
}

uint64_t AttachedPushes::bytes_staged() const {
  MutexLock lock(&mu_);
  return bytes_staged_;
}

uint64_t AttachedPushes::bytes_results() const {
  MutexLock lock(&mu_);
  return bytes_results_;
}

}  // namespace bdn
