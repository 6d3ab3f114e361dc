#include "worker/host/host_client.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "common/base/float_guard.h"
#include "common/base/log.h"
#include "common/base/status.h"
#include "common/base/thread.h"
#include "common/cluster/control_messages.h"
#include "common/cluster/declaration_list.h"
#include "compressors/codec_schedule.h"
#include "kernels/float_kernels.h"
#include "proto/host.pb.h"
#include "worker/error_fields.h"
#include "worker/host/host_messages.h"
#include "worker/link_states.h"
#include "worker/pipeline/chunked_payload.h"
#include "worker/push_check.h"
#include "worker/tensor_table.h"

namespace bdn {
namespace {

namespace wire = bandoneon::host;

constexpr uint64_t kNoLimit = ~uint64_t{0};
// For the daemon to say that a call's time is over.
constexpr absl::Duration kAnswerGrace = absl::Seconds(10);
constexpr absl::Duration kTimeToDescribe = absl::Seconds(2);

// Metrics of the process itself, in the order of ReadMetrics; those of the daemon follow.
constexpr Metric kMetrics[] = {
    {"rank", Metric::Kind::kGauge, "of this worker"},
    {"size", Metric::Kind::kGauge, "workers of the job"},
    {"tickets_done", Metric::Kind::kCounter, "exchanges of whole tensors that ended"},
    {"bytes_staged", Metric::Kind::kCounter, "copied for the daemon to read"},
    {"bytes_results", Metric::Kind::kCounter, "results copied into the caller's tensors"},
};

std::span<std::byte> BytesOf(std::span<float> floats) { return std::as_writable_bytes(floats); }

}  // namespace

struct HostClient::Caller {
  bool is_answered = false;
  wire::Answer answer;
  std::span<std::byte> out;  // where data goes
};

// ---- Life

HostClient::HostClient(const Options& options, FileDescriptor socket, const Clock* clock)
    : options_(options),
      clock_(clock),
      arena_(std::make_shared<ShmArena>(kNoLimit)),
      pool_(ArenaOrHeap(arena_)),
      channel_(std::make_unique<HostChannel>(std::move(socket), arena_, EncodeSegmentToDaemon)),
      wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      tickets_(clock) {
  arena_->Enable();
}

absl::StatusOr<std::unique_ptr<HostClient>> HostClient::Attach(const Options& options,
                                                               FileDescriptor socket,
                                                               const Clock* clock,
                                                               Registry* telemetry) {
  std::unique_ptr<HostClient> client(new HostClient(options, std::move(socket), clock));
  BDN_RETURN_IF_ERROR(client->SayHello());
  BDN_RETURN_IF_ERROR(client->CountWhatTheDaemonCounts(telemetry));
  return client;
}

absl::Status HostClient::SayHello() {
  wire::ToDaemon message;
  wire::Hello* hello = message.mutable_hello();
  hello->set_version(kHostVersion);
  hello->set_job_id(options_.job_id);
  hello->set_local_rank(options_.local_rank);
  hello->set_local_size(static_cast<uint32_t>(options_.local_size));
  if (options_.codec != nullptr) hello->set_codec(options_.codec->spec());
  if (!channel_->Send(message)) return Unavailable("the daemon at %s has ended", options_.address);
  receiver_ = StartThread("bdn-attached", [this] { Receive(); });
  const absl::Time deadline = clock_->Now() + options_.attach_timeout;
  MutexLock lock(&mu_);
  while (!is_welcome_ && over_.ok() && clock_->Now() < deadline) {
    clock_->WaitUntil(&changed_, &mu_, deadline);
  }
  if (!over_.ok()) return Annotate(over_, "attaching to " + options_.address);
  if (is_welcome_) return absl::OkStatus();
  return DeadlineExceeded(
      "the daemon at %s waits for other processes of this host, or for other nodes of the job; its log "
      "and `bandoneon status` say for whom",
      options_.address);
}

HostClient::~HostClient() {
  metrics_.clear();
  Close();
  if (receiver_.joinable()) receiver_.join();
}

void HostClient::Close() {
  {
    MutexLock lock(&mu_);
    if (is_closed_) return;
    is_closed_ = true;
  }
  Fail(Cancelled("the worker is being closed"));
  shutdown(channel_->socket(), SHUT_RDWR);
  const uint64_t one = 1;
  (void)!write(wake_.get(), &one, sizeof(one));
}

// ---- The receiving thread

void HostClient::Receive() {
  const FloatGuard guard;
  for (;;) {
    const short writable = channel_->has_waiting() ? POLLOUT : 0;
    pollfd fds[] = {{channel_->socket(), static_cast<short>(POLLIN | writable), 0},
                    {wake_.get(), POLLIN, 0}};
    if (poll(fds, 2, -1) < 0) continue;
    uint64_t woken;
    (void)!read(wake_.get(), &woken, sizeof(woken));
    {
      MutexLock lock(&mu_);
      if (is_closed_) return;
    }
    absl::Status status;
    if (!channel_->Flush()) status = Unavailable("the connection has ended");
    if (fds[0].revents != 0) {
      for (;;) {
        absl::StatusOr<std::optional<std::string>> bytes = channel_->Receive();
        status = bytes.status();
        if (!status.ok() || !bytes->has_value()) break;
        status = OnMessage(**bytes);
        if (!status.ok()) break;
      }
    }
    if (!status.ok()) {
      return Fail(Unavailable(
          "the daemon of this host, bandoneon-worker at %s, has gone (%s): the job is over for this "
          "process; see the daemon's log",
          options_.address, status.message()));
    }
  }
}

void HostClient::Fail(const absl::Status& status) {
  std::vector<TicketTable::Ended> ended;
  {
    MutexLock lock(&mu_);
    if (!over_.ok()) return;
    over_ = status;
    for (auto& [id, tensor] : tensors_) {
      for (const auto& pending : tensor.pending) {
        tickets_.EndPart(pending->ticket, {.status = status}, &ended);
      }
      tensor.pending.clear();
    }
    tensor_of_.clear();
    changed_.SignalAll();
  }
  tickets_.Deliver(ended);
}

absl::Status HostClient::OnMessage(const std::string& bytes) {
  wire::ToProcess message;
  if (!message.ParseFromString(bytes)) return InvalidArgument("a message that is none");
  switch (message.what_case()) {
    case wire::ToProcess::kWelcome: {
      const wire::Welcome& welcome = message.welcome();
      if (welcome.has_refused()) {
        Fail(Read(welcome.refused()));
        return absl::OkStatus();
      }
      MutexLock lock(&mu_);
      rank_ = welcome.rank();
      size_ = static_cast<int>(welcome.size());
      run_seed_ = welcome.run_seed();
      is_welcome_ = true;
      changed_.SignalAll();
      return absl::OkStatus();
    }
    case wire::ToProcess::kSegment:
      return channel_->AddSegment(message.segment().index(), message.segment().bytes());
    case wire::ToProcess::kEnded:
      return OnEnded(message.ended());
    case wire::ToProcess::kAnswer: {
      const uint64_t id = message.answer().id();
      const bool has_data = message.answer().has_data();
      absl::Status status;
      {
        MutexLock lock(&mu_);
        const auto caller = callers_.find(id);
        if (caller != callers_.end()) {
          const std::span<std::byte> out = caller->second->out;
          if (has_data && !out.empty()) {
            const auto data = channel_->Resolve(Read(message.answer().data()), out.size());
            status = data.status();
            if (data.ok()) std::memcpy(out.data(), data->span.data(), out.size());
          }
          caller->second->answer = std::move(*message.mutable_answer());
          // Places are resolved here, where the segments are: those of tensors.
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
    case wire::ToProcess::kFailed:
      Fail(Read(message.failed()));
      return absl::OkStatus();
    default:
      return InvalidArgument("a message of no known kind");
  }
}

absl::Status HostClient::OnEnded(const wire::Ended& ended) {
  const Tensor* tensor = nullptr;
  std::shared_ptr<Pending> pending;
  {
    MutexLock lock(&mu_);
    const auto found = tensor_of_.find(ended.ticket());
    if (found == tensor_of_.end()) return absl::OkStatus();  // it has failed meanwhile
    tensor = &tensors_.at(found->second);
    pending = tensor->pending.front();
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
    CopyResult(*tensor, *pending, ended);
  }
  std::vector<TicketTable::Ended> tickets;
  std::vector<Ready> ready;
  {
    MutexLock lock(&mu_);
    const auto found = tensor_of_.find(ended.ticket());
    if (found == tensor_of_.end()) return absl::OkStatus();
    Tensor& mutable_tensor = tensors_.at(found->second);
    tensor_of_.erase(found);
    mutable_tensor.pending.pop_front();
    TakeReady(&mutable_tensor, &ready);
    tickets_.EndPart(ended.ticket(),
                     {.status = status, .absent = ended.absent(), .nonfinite = ended.nonfinite()},
                     &tickets);
  }
  SendPushes(ready);
  tickets_.Deliver(tickets);
  return absl::OkStatus();
}

void HostClient::CopyResult(const Tensor& tensor, const Pending& pending,
                            const wire::Ended& ended) {
  const MutableView to = pending.request.data;
  if (to.data == nullptr || ended.absent()) return;
  const bool is_double = to.dtype == DType::kFloat64;
  const ConstView from{tensor.result.span.data(), is_double ? DType::kFloat64 : DType::kFloat32,
                       to.n};
  // Weights have no loss scale.
  const bool is_aggregate = tensor.declaration.rule.str() == "mean";
  ConvertScaled(from, is_aggregate ? pending.request.loss_scale : 1.0f, to);
  MutexLock lock(&mu_);
  bytes_results_ += to.n * DTypeSize(to.dtype);
}

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
  channel_->Send(message);
  const uint64_t one = 1;
  if (channel_->has_waiting()) (void)!write(wake_.get(), &one, sizeof(one));
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

absl::Status HostClient::Check() const {
  if (!over_.ok()) return over_;
  if (is_leaving_) return FailedPrecondition("worker %d is leaving the job", rank_);
  return absl::OkStatus();
}

absl::StatusOr<HostClient::Tensor*> HostClient::Find(uint32_t tensor) {
  const auto found = tensors_.find(tensor);
  if (found == tensors_.end()) return NotFound("no tensor %d was declared", tensor);
  return &found->second;
}

absl::StatusOr<const HostClient::Tensor*> HostClient::FindIdle(uint32_t id) const {
  const auto found = tensors_.find(id);
  if (found == tensors_.end()) return NotFound("no tensor %d was declared", id);
  const Tensor* const tensor = &found->second;
  if (tensor->pending.empty()) return tensor;
  return FailedPrecondition("tensor '%s' is in flight; wait for it first",
                            tensor->declaration.name);
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

absl::StatusOr<std::string> HostClient::NameOf(uint32_t id) const {
  MutexLock lock(&mu_);
  const auto found = tensors_.find(id);
  if (found == tensors_.end()) return NotFound("no tensor %d was declared", id);
  return found->second.declaration.name;
}

absl::StatusOr<MutableView> HostClient::ViewOf(uint32_t id, void* data) const {
  MutexLock lock(&mu_);
  const auto found = tensors_.find(id);
  if (found == tensors_.end()) return NotFound("no tensor %d was declared", id);
  const TensorDeclaration& declared = found->second.declaration;
  return MutableView{data, declared.dtype, declared.elements};
}

absl::Status HostClient::GetState(uint32_t id, LinkState what, std::span<float> out) const {
  wire::Call call;
  call.mutable_get_state()->set_tensor(id);
  call.mutable_get_state()->set_what(static_cast<uint32_t>(what));
  {
    MutexLock lock(&mu_);
    BDN_ASSIGN_OR_RETURN(const Tensor* tensor, FindIdle(id));
    BDN_RETURN_IF_ERROR(CheckStateSize(tensor->declaration, what, out.size()));
  }
  return Ask(std::move(call), absl::InfiniteDuration(), BytesOf(out)).status();
}

absl::Status HostClient::SetState(uint32_t id, LinkState what, std::span<const float> in) {
  wire::Call call;
  call.mutable_set_state()->set_tensor(id);
  call.mutable_set_state()->set_what(static_cast<uint32_t>(what));
  {
    MutexLock lock(&mu_);
    BDN_ASSIGN_OR_RETURN(const Tensor* tensor, FindIdle(id));
    BDN_RETURN_IF_ERROR(CheckStateSize(tensor->declaration, what, in.size()));
  }
  HostPlace place;
  BDN_ASSIGN_OR_RETURN(const Buffer lent, Lend(std::as_bytes(in), &place));
  Write(place, call.mutable_set_state()->mutable_data());
  return Ask(std::move(call), absl::InfiniteDuration()).status();
}

absl::StatusOr<Step> HostClient::GetStep(uint32_t id) const {
  MutexLock lock(&mu_);
  const auto found = tensors_.find(id);
  if (found == tensors_.end()) return NotFound("no tensor %d was declared", id);
  return found->second.pushed;
}

absl::Status HostClient::SetStep(uint32_t id, Step step) {
  wire::Call call;
  call.mutable_set_step()->set_tensor(id);
  call.mutable_set_step()->set_step(step);
  {
    MutexLock lock(&mu_);
    BDN_RETURN_IF_ERROR(FindIdle(id).status());
  }
  BDN_RETURN_IF_ERROR(Ask(std::move(call), absl::InfiniteDuration()).status());
  MutexLock lock(&mu_);
  tensors_.at(id).pushed = step;
  return absl::OkStatus();
}

// ---- Exchanges

absl::StatusOr<TicketId> HostClient::Deposit(PushRequest* request, std::vector<Ready>* ready) {
  BDN_RETURN_IF_ERROR(Check());
  BDN_ASSIGN_OR_RETURN(Tensor * tensor, Find(request->tensor));
  const TensorDeclaration& declared = tensor->declaration;
  if (request->sources != nullptr) {
    return Unimplemented("tensor '%s': a sum of sources is for the daemon to push", declared.name);
  }
  BDN_RETURN_IF_ERROR(CheckRequest(*request, declared));
  if (request->left_out != nullptr && tensor->keeps_left_out) return KeepsLeftOut(declared.name);
  const size_t bytes = declared.elements * DTypeSize(declared.dtype);
  const ByteSpan data{static_cast<const std::byte*>(request->data.data), bytes};
  const bool is_shared =
      request->absent || (!IsEncoded(declared) && channel_->Find(data).has_value());
  if (!is_shared && tensor->staging == nullptr) {
    tensor->staging = arena_->Allocate(StagingBytes(declared));
    if (tensor->staging == nullptr) {
      return ResourceExhausted(
          "tensor '%s': %d bytes of shared memory for the daemon to read are not to be had: give this "
          "process more memory, or let its gradients lie in memory of bdn_alloc",
          declared.name, StagingBytes(declared));
    }
  }
  auto pending = std::make_shared<Pending>();
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

void HostClient::TakeReady(Tensor* tensor, std::vector<Ready>* ready) {
  if (tensor->pending.empty() || tensor->pending.front()->is_taken) return;
  tensor->pending.front()->is_taken = true;
  ready->push_back({tensor, tensor->pending.front()});
}

bool HostClient::IsEncoded(const TensorDeclaration& tensor) const {
  return options_.codec != nullptr && tensor.dtype != DType::kFloat64;
}

size_t HostClient::StagingBytes(const TensorDeclaration& tensor) const {
  const size_t raw = tensor.elements * DTypeSize(tensor.dtype);
  return IsEncoded(tensor) ? std::max(raw, ChunkedBytes(*options_.codec, tensor.elements)) : raw;
}

uint64_t HostClient::PutInPlace(const Ready& ready, wire::Push* push) const {
  const TensorDeclaration& declared = ready.tensor->declaration;
  const ConstView data = ready.pending->request.data;
  std::byte* const staging = ready.tensor->staging;
  if (IsEncoded(declared)) {
    const size_t size = ChunkedBytes(*options_.codec, data.n);
    const auto draw = [&](uint32_t chunk) {
      return Draw({.run_seed = run_seed_,
                   .tensor_name_hash = Draw::HashName(declared.name),
                   .partition = chunk,
                   .step = ready.pending->step,
                   .purpose = DrawPurpose::kHostEncode,
                   .rank = rank_});
    };
    if (EncodeChunks(*options_.codec, data, draw, {staging, size}).ok()) {
      push->set_encoded(true);
      Write(*channel_->Find({staging, size}), push->mutable_data());
      return size;
    }
    // It is not finite, and goes as it is, so that all are told.
  }
  const size_t bytes = data.n * DTypeSize(data.dtype);
  const auto place = channel_->Find({static_cast<const std::byte*>(data.data), bytes});
  if (place.has_value()) {
    Write(*place, push->mutable_data());
    return 0;
  }
  std::memcpy(staging, data.data, bytes);
  Write(*channel_->Find({staging, bytes}), push->mutable_data());
  return bytes;
}

void HostClient::SendPushes(std::span<const Ready> pushes) {
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
    push->set_left_out(request.left_out != nullptr);
    if (!request.absent) staged += PutInPlace(ready, push);
  }
  {
    MutexLock lock(&mu_);
    bytes_staged_ += staged;
  }
  channel_->Send(message);
  const uint64_t one = 1;
  if (channel_->has_waiting()) (void)!write(wake_.get(), &one, sizeof(one));
}

absl::Status HostClient::PushPullAll(std::span<PushRequest> requests,
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
  SendPushes(ready);
  return status;
}

absl::Status HostClient::WaitAll(std::span<const TicketId> tickets, absl::Duration timeout,
                                 std::vector<PushResult>* results) {
  const absl::Time deadline = clock_->Now() + timeout;
  results->clear();
  for (const TicketId ticket : tickets) {
    const auto result = tickets_.Wait(ticket, deadline);
    if (!result.has_value()) return DescribeWait(ticket);
    BDN_RETURN_IF_ERROR(result->status());
    results->push_back(**result);
  }
  return absl::OkStatus();
}

absl::Status HostClient::DescribeWait(TicketId ticket) {
  BDN_ASSIGN_OR_RETURN(const TicketTable::Subject subject, tickets_.Find(ticket));
  wire::Call call;
  call.set_describe(subject.tensor);
  const absl::Status described = Ask(std::move(call), kTimeToDescribe).status();
  return described.ok() ? DeadlineExceeded("still in flight") : described;
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

// ---- What servers hold

absl::Status HostClient::SetServerState(uint32_t id, StatePart part, std::span<const float> values,
                                        Step step, absl::Duration timeout) {
  wire::Call call;
  wire::ServerState* state = call.mutable_set_server_state();
  state->set_tensor(id);
  state->set_part(static_cast<uint32_t>(part));
  state->set_step(step);
  {
    MutexLock lock(&mu_);
    BDN_RETURN_IF_ERROR(Check());
    BDN_ASSIGN_OR_RETURN(const Tensor* tensor, FindIdle(id));
    BDN_RETURN_IF_ERROR(CheckElements(tensor->declaration, values.size()));
  }
  HostPlace place;
  BDN_ASSIGN_OR_RETURN(const Buffer lent, Lend(std::as_bytes(values), &place));
  Write(place, state->mutable_data());
  return Ask(std::move(call), timeout).status();
}

absl::Status HostClient::GetServerState(uint32_t id, StatePart part, std::span<float> out,
                                        absl::Duration timeout) {
  wire::Call call;
  call.mutable_get_server_state()->set_tensor(id);
  call.mutable_get_server_state()->set_part(static_cast<uint32_t>(part));
  {
    MutexLock lock(&mu_);
    BDN_RETURN_IF_ERROR(Check());
    BDN_ASSIGN_OR_RETURN(const Tensor* tensor, FindIdle(id));
    BDN_RETURN_IF_ERROR(CheckElements(tensor->declaration, out.size()));
  }
  return Ask(std::move(call), timeout, BytesOf(out)).status();
}

absl::Status HostClient::SetServerCounters(uint32_t id, const StateCounters& counters, Step step,
                                           absl::Duration timeout) {
  wire::Call call;
  wire::ServerState* state = call.mutable_set_server_counters();
  state->set_tensor(id);
  state->set_step(step);
  state->mutable_counters()->set_updates(counters.updates);
  state->mutable_counters()->set_previous_learning_rate(counters.previous_learning_rate);
  {
    MutexLock lock(&mu_);
    BDN_RETURN_IF_ERROR(Check());
    BDN_RETURN_IF_ERROR(FindIdle(id).status());
  }
  return Ask(std::move(call), timeout).status();
}

absl::StatusOr<StateCounters> HostClient::GetServerCounters(uint32_t id, absl::Duration timeout) {
  wire::Call call;
  call.mutable_get_server_counters()->set_tensor(id);
  {
    MutexLock lock(&mu_);
    BDN_RETURN_IF_ERROR(Check());
    BDN_RETURN_IF_ERROR(FindIdle(id).status());
  }
  BDN_ASSIGN_OR_RETURN(const wire::Answer answer, Ask(std::move(call), timeout));
  return StateCounters{answer.counters().updates(), answer.counters().previous_learning_rate()};
}

absl::Status HostClient::FetchWeights(uint32_t id, std::span<float> out, absl::Duration timeout) {
  wire::Call call;
  call.set_fetch_weights(id);
  {
    MutexLock lock(&mu_);
    BDN_RETURN_IF_ERROR(Check());
    BDN_ASSIGN_OR_RETURN(const Tensor* tensor, FindIdle(id));
    BDN_RETURN_IF_ERROR(CheckElements(tensor->declaration, out.size()));
  }
  return Ask(std::move(call), timeout, BytesOf(out)).status();
}

// ---- What is counted

absl::Status HostClient::CountWhatTheDaemonCounts(Registry* telemetry) {
  wire::Call call;
  call.mutable_stats();
  BDN_ASSIGN_OR_RETURN(const wire::Answer answer, Ask(std::move(call), options_.attach_timeout));
  for (const wire::Number& number : answer.numbers()) {
    const bool is_ours = std::any_of(std::begin(kMetrics), std::end(kMetrics),
                                     [&](const Metric& one) { return one.name == number.name(); });
    if (is_ours) continue;
    const std::string& name = texts_.emplace_back(number.name());
    const std::string& help = texts_.emplace_back(number.help());
    daemons_metrics_.push_back({name.c_str(),
                                number.kind() == 0 ? Metric::Kind::kCounter : Metric::Kind::kGauge,
                                help.c_str()});
  }
  metrics_.push_back(telemetry->Add(kMetrics, [this](auto values) { ReadMetrics(values); }));
  metrics_.push_back(
      telemetry->Add(daemons_metrics_, [this](auto values) { ReadDaemonsMetrics(values); }));
  return absl::OkStatus();
}

void HostClient::ReadMetrics(std::span<uint64_t> values) const {
  MutexLock lock(&mu_);
  const uint64_t now[] = {static_cast<uint64_t>(rank_), static_cast<uint64_t>(size_),
                          tickets_.num_ended(), bytes_staged_, bytes_results_};
  static_assert(std::size(now) == std::size(kMetrics));
  std::copy(std::begin(now), std::end(now), values.begin());
}

// Zeros once the daemon is gone.
void HostClient::ReadDaemonsMetrics(std::span<uint64_t> values) const {
  wire::Call call;
  call.mutable_stats();
  const auto answer = Ask(std::move(call), kTimeToDescribe);
  if (!answer.ok()) return;
  std::map<std::string_view, uint64_t> found;
  for (const wire::Number& number : answer->numbers()) found[number.name()] = number.value();
  for (size_t i = 0; i < daemons_metrics_.size(); ++i) values[i] = found[daemons_metrics_[i].name];
}

}  // namespace bdn
