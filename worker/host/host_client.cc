#include "worker/host/host_client.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "common/base/float_guard.h"
#include "common/base/status.h"
#include "common/base/thread.h"
#include "common/cluster/worker_names.h"
#include "kernels/float_kernels.h"
#include "proto/host.pb.h"
#include "worker/host/host_messages.h"
#include "worker/pipeline/chunked_payload.h"
#include "worker/push_check.h"

namespace bdn {
namespace {

namespace wire = bandoneon::host;

constexpr uint64_t kNoLimit = ~uint64_t{0};
constexpr absl::Duration kTimeToDescribe = absl::Seconds(2);
// Of a result: from here on it would not be in a core's cache when it is wanted.
constexpr size_t kStreamBytes = size_t{1} << 20;
// Of a result that are copied before the daemon is told that this process is alive: one that is larger
// than memory is fast may take longer than a lease.
constexpr size_t kElementsAtATime = size_t{16} << 20;

absl::Status WasRetired(const TensorDeclaration& tensor) {
  return Cancelled("tensor '%s' was retired", tensor.name);
}

}  // namespace

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
  Wake();
}

void HostClient::Wake() const {
  const uint64_t one = 1;
  (void)!write(wake_.get(), &one, sizeof(one));
}

void HostClient::Send(const wire::ToDaemon& message) const {
  channel_->Send(message);
  if (channel_->has_waiting()) Wake();
}

// ---- The receiving thread

void HostClient::Receive() {
  const FloatGuard guard;
  for (;;) {
    const short writable = channel_->has_waiting() ? POLLOUT : 0;
    pollfd fds[] = {{channel_->socket(), static_cast<short>(POLLIN | writable), 0},
                    {wake_.get(), POLLIN, 0}};
    if (poll(fds, 2, PollTimeoutMs()) < 0) continue;
    uint64_t woken;
    (void)!read(wake_.get(), &woken, sizeof(woken));
    {
      MutexLock lock(&mu_);
      if (is_closed_) return;
    }
    if (signs_.has_value()) lease_.WasHeldUp(signs_->OnAwake(clock_->Now()));
    absl::Status status;
    if (!channel_->Flush()) status = Unavailable("the connection has ended");
    if (fds[0].revents != 0) status = ReadMessages();
    if (!status.ok()) {
      return Fail(Unavailable(
          "the daemon of this host, bandoneon-worker at %s, has gone (%s): the job is over for this "
          "process; see the daemon's log",
          options_.address, status.message()));
    }
    SayAlive();
    status = CheckDaemonsLease();
    if (!status.ok()) return Fail(status);
  }
}

absl::Status HostClient::ReadMessages() {
  for (;;) {
    BDN_ASSIGN_OR_RETURN(const std::optional<std::string> bytes, channel_->Receive());
    if (!bytes.has_value()) return absl::OkStatus();
    lease_.Heard(clock_->Now());
    BDN_RETURN_IF_ERROR(OnMessage(*bytes));
    SayAlive();  // many results may take long to copy
    if (signs_.has_value()) (void)signs_->OnAwake(clock_->Now());
  }
}

void HostClient::SayAlive() {
  if (!signs_.has_value() || !signs_->IsDue(clock_->Now())) return;
  wire::ToDaemon message;
  message.mutable_alive();
  channel_->Send(message);
}

absl::Status HostClient::CheckDaemonsLease() const {
  const absl::Time now = clock_->Now();
  if (!lease_.IsOver(now)) return absl::OkStatus();
  return Unavailable(
      "the daemon of this host, bandoneon-worker at %s (process %d, of %s), stopped answering %.1f s ago: "
      "the job is over for this process; see the daemon's log",
      options_.address, channel_->peer_pid(), ranks_, absl::ToDoubleSeconds(lease_.SilentFor(now)));
}

int HostClient::PollTimeoutMs() const {
  if (!signs_.has_value()) return -1;
  const absl::Duration left = std::min(signs_->NextTime(), lease_.end()) - clock_->Now();
  return static_cast<int>(absl::ToInt64Milliseconds(std::max(left, absl::ZeroDuration()))) + 1;
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
      const absl::Duration lease = absl::Milliseconds(welcome.lease_ms());
      lease_.Begin(lease, clock_->Now());
      signs_.emplace(absl::Milliseconds(welcome.heartbeat_ms()), lease, clock_->Now());
      ranks_ = RanksOfWorker(welcome.rank() - static_cast<Rank>(welcome.local_rank()),
                             static_cast<int>(welcome.local_size()));
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
    case wire::ToProcess::kAnswer:
      return OnAnswer(std::move(*message.mutable_answer()));
    case wire::ToProcess::kFailed:
      Fail(Read(message.failed()));
      return absl::OkStatus();
    case wire::ToProcess::kAlive:
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
    // Of a retired one the daemon may have given the result's memory to another by now.
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
    const bool is_lost = status.ok() && mutable_tensor.retired;
    tickets_.EndPart(ended.ticket(),
                     {.status = is_lost ? WasRetired(mutable_tensor.declaration) : status,
                      .absent = ended.absent(),
                      .nonfinite = ended.nonfinite()},
                     &tickets);
    if (!status.ok() && ended.undone()) {
      // Those behind it were to be the steps after it.
      for (const auto& behind : mutable_tensor.pending) {
        tensor_of_.erase(behind->ticket);
        tickets_.EndPart(behind->ticket, {.status = status}, &tickets);
      }
      mutable_tensor.pending.clear();
      mutable_tensor.pushed = pending->step - 1;
    }
    TakeReady(&mutable_tensor, &ready);
    RemoveIfUnused(id);
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
    SayAlive();
  }
  MutexLock lock(&mu_);
  bytes_results_ += to.n * DTypeSize(to.dtype);
}

// ---- Exchanges

absl::Status HostClient::Check() const {
  if (!over_.ok()) return over_;
  if (is_leaving_) return FailedPrecondition("worker %d is leaving the job", rank_);
  return absl::OkStatus();
}

absl::StatusOr<const HostClient::Tensor*> HostClient::Find(uint32_t tensor) const {
  const auto found = tensors_.find(tensor);
  if (found != tensors_.end() && !found->second.retired) return &found->second;
  return NotFound("no tensor %d was declared, or it was retired since", tensor);
}

absl::StatusOr<HostClient::Tensor*> HostClient::Find(uint32_t tensor) {
  BDN_RETURN_IF_ERROR(std::as_const(*this).Find(tensor).status());
  return &tensors_.at(tensor);
}

absl::StatusOr<TicketId> HostClient::Deposit(PushRequest* request, std::vector<Ready>* ready) {
  BDN_RETURN_IF_ERROR(Check());
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

// What the daemon has of it goes on: other hosts may wait for it. What has not begun is not pushed.
absl::Status HostClient::Retire(std::span<const uint32_t> tensors) {
  wire::ToDaemon message;
  std::vector<TicketTable::Ended> ended;
  {
    MutexLock lock(&mu_);
    if (!over_.ok()) return absl::OkStatus();  // the daemon forgets all
    for (const uint32_t id : tensors) {
      const auto found = tensors_.find(id);
      if (found == tensors_.end() || found->second.retired) continue;
      Tensor& tensor = found->second;
      message.mutable_retired()->add_tensors(id);
      tensor.retired = true;
      ids_.erase(tensor.declaration.name);
      while (!tensor.pending.empty() && !tensor.pending.back()->is_taken) {
        const TicketId ticket = tensor.pending.back()->ticket;
        tensor_of_.erase(ticket);
        tickets_.EndPart(ticket, {.status = WasRetired(tensor.declaration)}, &ended);
        tensor.pending.pop_back();
      }
      RemoveIfUnused(id);
    }
    if (message.has_retired()) Send(message);  // before a declaration of these names
  }
  tickets_.Deliver(ended);
  return absl::OkStatus();
}

void HostClient::RemoveIfUnused(uint32_t id) {
  const auto found = tensors_.find(id);
  const Tensor& tensor = found->second;
  if (!tensor.retired || !tensor.pending.empty()) return;
  if (tensor.staging != nullptr) arena_->Free(tensor.staging, StagingBytes(tensor.declaration));
  tensors_.erase(found);
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
    push->set_program_steps(request.program_steps);
    push->set_left_out(request.left_out != nullptr);
    if (!request.absent) staged += PutInPlace(ready, push);
  }
  {
    MutexLock lock(&mu_);
    bytes_staged_ += staged;
  }
  Send(message);
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
  return tickets_.WaitAll(
      tickets, timeout, [this](TicketId ticket) { return DescribeWait(ticket); }, results);
}

absl::Status HostClient::DescribeWait(TicketId ticket) {
  BDN_ASSIGN_OR_RETURN(const TicketTable::Subject subject, tickets_.Find(ticket));
  wire::Call call;
  call.set_describe(subject.tensor);
  const absl::Status described = Ask(std::move(call), kTimeToDescribe).status();
  return described.ok() ? DeadlineExceeded("still in flight") : described;
}

}  // namespace bdn
