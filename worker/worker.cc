#include "worker/worker.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/time/clock.h"
#include "common/base/draw.h"
#include "common/base/status.h"
#include "worker/error_fields.h"

namespace bdn {

namespace {

// Of one exchange and step: then it is the path that damages, and not chance.
constexpr int kMaxDamagedReplies = 8;
// What servers say that they have is not signalled.
constexpr absl::Duration kHandOverPoll = absl::Milliseconds(50);

}  // namespace

absl::StatusOr<std::unique_ptr<Worker>> Worker::Create(const Options& options,
                                                       std::unique_ptr<ControlPlane> control,
                                                       std::unique_ptr<Transport> transport) {
  std::unique_ptr<Worker> worker(new Worker(options, std::move(control), std::move(transport)));
  BDN_RETURN_IF_ERROR(worker->Start());
  return worker;
}

Worker::Worker(const Options& options, std::unique_ptr<ControlPlane> control,
               std::unique_ptr<Transport> transport)
    : options_(options), control_(std::move(control)), transport_(std::move(transport)) {}

absl::Status Worker::Start() {
  JoinRequest join = options_.join;
  join.role = Role::kWorker;
  BDN_ASSIGN_OR_RETURN(joined_, control_->Join(join, options_.join_timeout));
  executor_ = MakePoolExecutor(options_.num_threads);
  queue_ = std::make_unique<StageQueue>(executor_.get(), options_.max_bytes_in_flight);
  requests_ = std::make_unique<RequestRunner>(
      RequestTable::Options{.self = joined_.node,
                            .rank = joined_.rank,
                            .job_id = joined_.config.job_id,
                            .token = options_.credentials.token(),
                            .probe_interval = options_.probe_interval,
                            .timeout = options_.wait_timeout},
      transport_.get(), [this](Key key, Step step, absl::StatusOr<Frame> answer) {
        OnAnswer(key, step, std::move(answer));
      });
  transport_->Start([this](ConnectionId from, Frame frame) { requests_->OnFrame(from, frame); });
  BDN_RETURN_IF_ERROR(requests_->SetMembership(joined_.membership));
  control_->Watch({
      .on_membership =
          [this](auto membership) {
            const absl::Status status = requests_->SetMembership(std::move(membership));
            if (!status.ok()) FailJob(status);
          },
      .on_catalogue = [](auto) {},  // Declare returns what concerns us
      .on_placement = [](auto) {},
      .on_failure = [this](const absl::Status& status) { FailJob(status); },
      .on_finished = [] {},
  });
  return absl::OkStatus();
}

Worker::~Worker() {
  bool in_peace;
  {
    MutexLock lock(&mu_);
    in_peace = left_ || !failed_.ok();
  }
  if (joined_.node != 0 && !in_peace) {
    (void)control_->Leave(Cancelled("it was closed before it left the job"), absl::ZeroDuration());
  }
  control_->Close();
  if (requests_ == nullptr) return;  // Start did not come that far
  FailJob(Cancelled("the worker is being closed"));
  requests_->Stop();
  transport_->Close();
  transport_->Join();
  executor_.reset();   // runs what is queued; everything ends in an error now
  transport_->Join();  // and so did what it still sent
}

absl::StatusOr<const Worker::Tensor*> Worker::FindDense(uint32_t id) const {
  if (id >= tensors_.size() || tensors_[id].declaration.kind != KeyKind::kDense) {
    return NotFound("no tensor of id %d was declared", id);
  }
  return &tensors_[id];
}

absl::Status Worker::CheckTakesPart() const {
  BDN_RETURN_IF_ERROR(failed_);
  if (leaving_ > 0) return FailedPrecondition("worker %d is leaving the job", rank());
  return absl::OkStatus();
}

absl::Status Worker::CheckRequest(const PushRequest& request) const {
  BDN_RETURN_IF_ERROR(CheckTakesPart());
  BDN_ASSIGN_OR_RETURN(const Tensor* tensor, FindDense(request.tensor));
  const TensorDeclaration& declared = tensor->declaration;
  const auto bad = [&declared](const std::string& what) {
    return InvalidArgument("tensor '%s': %s", declared.name, what);
  };
  if (request.data.data == nullptr && !request.absent) return bad("data is null");
  if (request.data.data != nullptr && request.data.dtype != declared.dtype) {
    return bad(absl::StrFormat("declared as %s, pushed as %s", DTypeName(declared.dtype),
                               DTypeName(request.data.dtype)));
  }
  if (request.data.data != nullptr && request.data.n != declared.elements) {
    return bad(absl::StrFormat("declared with %d elements, pushed with %d", declared.elements,
                               request.data.n));
  }
  if (!std::isfinite(request.weight) || request.weight < 0)
    return bad("weight is not finite and >= 0");
  if (!std::isfinite(request.loss_scale) || request.loss_scale <= 0) {
    return bad("loss_scale is not finite and > 0");
  }
  if (!std::isfinite(request.weight / request.loss_scale))
    return bad("weight / loss_scale overflows");
  if (!std::isfinite(request.learning_rate)) return bad("learning_rate is not finite");
  for (const TensorPart& part : tensor->parts) {
    if (rendezvous_.contains(part.key->entry.key)) {
      return FailedPrecondition("tensor '%s': its state is being set or fetched; wait for that",
                                declared.name);
    }
    if (request.left_out != nullptr && part.key->has_memory()) {
      return bad("what is left out stays in the push's own memory; declare push without ef(...)");
    }
  }
  return CheckFits(*tensor, request);
}

absl::Status Worker::CheckFits(const Tensor& tensor, const PushRequest& request) const {
  for (const TensorPart& part : tensor.parts) {
    for (const auto& exchange : part.key->queue) {
      if (exchange->step != tensor.pushed + 1 || exchange->num_filled == 0) continue;
      if (exchange->weight != request.weight || exchange->learning_rate != request.learning_rate) {
        return InvalidArgument(
            "tensor '%s': weight %g and learning rate %g, where "
            "others of its fused group have %g and %g in step %d",
            tensor.declaration.name, request.weight, request.learning_rate, exchange->weight,
            exchange->learning_rate, exchange->step);
      }
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<TicketId> Worker::PushPull(PushRequest request) {
  std::vector<WorkerKey*> ready;
  TicketId id;
  {
    MutexLock lock(&mu_);
    BDN_RETURN_IF_ERROR(CheckRequest(request));
    Tensor& tensor = tensors_[request.tensor];
    id = ++last_ticket_;
    const Step step = ++tensor.pushed;
    for (const TensorPart& part : tensor.parts) {
      Deposit(part, step, id, request);
      if (ClaimFront(part.key)) ready.push_back(part.key);
    }
    tickets_[id] = {.tensor = request.tensor,
                    .step = step,
                    .pending = static_cast<int>(tensor.parts.size()),
                    .notify = request.notify,
                    .done = std::move(request.done)};
  }
  for (WorkerKey* key : ready) StartEncode(key);
  return id;
}

void Worker::Deposit(const TensorPart& part, Step step, TicketId ticket,
                     const PushRequest& request) {
  auto& queue = part.key->queue;
  auto at = std::find_if(queue.begin(), queue.end(),
                         [step](const auto& exchange) { return exchange->step == step; });
  if (at == queue.end()) {
    auto exchange = std::make_unique<Exchange>();
    exchange->step = step;
    exchange->priority = request.priority;
    exchange->segments.resize(part.key->entry.segments.size());
    at = queue.insert(queue.end(), std::move(exchange));
  }
  Exchange& exchange = **at;
  exchange.weight = request.weight;
  exchange.learning_rate = request.learning_rate;
  exchange.priority = std::max(exchange.priority, request.priority);
  ExchangeSegment& segment = exchange.segments[part.segment];
  segment.filled = true;
  segment.present = !request.absent;
  if (request.data.data != nullptr) segment.data = request.data.Sub(part.offset, part.elements);
  segment.loss_scale = request.loss_scale;
  if (request.left_out != nullptr) segment.left_out = request.left_out + part.offset;
  segment.ticket = ticket;
  ++exchange.num_filled;
}

bool Worker::ClaimFront(WorkerKey* key) {
  if (key->in_flight || key->queue.empty()) return false;
  const Exchange& front = *key->queue.front();
  if (!front.is_complete()) return false;
  key->in_flight = true;
  return true;
}

void Worker::StartEncode(WorkerKey* key) {
  Exchange* exchange;
  {
    MutexLock lock(&mu_);
    exchange = key->queue.front().get();
  }
  const size_t budget = key->codecs.Push(exchange->step).MaxEncodedBytes();
  // Equal priorities start at different keys, so that workers do not all meet at one server.
  const Key order{key->entry.key.value ^ static_cast<uint64_t>(joined_.rank)};
  queue_->Push({.stage = StageQueue::Stage::kEncode,
                .priority = exchange->priority,
                .step = exchange->step,
                .key = order,
                .bytes = budget,
                .run = [this, key, exchange, budget] { RunEncode(key, exchange, budget); }});
}

void Worker::RunEncode(WorkerKey* key, Exchange* exchange, size_t budget) {
  EncodePush({joined_.config.run_seed, joined_.rank, &pool_}, key, exchange);
  Submit(key, exchange, [this, budget] { queue_->Release(budget); });
}

void Worker::Submit(WorkerKey* key, Exchange* exchange, std::function<void()> sent) {
  const absl::Status status = requests_->Submit({.frame = exchange->push,
                                                 .server = key->server,
                                                 .catalogue_version = key->catalogue_version,
                                                 .tensor = key->tensor_names[0]},
                                                std::move(sent));
  if (!status.ok()) FailJob(status);  // our own bug: one exchange of a key is in flight at a time
}

void Worker::SubmitFetch(WorkerKey* key, const Exchange& exchange) {
  const size_t segment = exchange.fetched;
  const bool delta = key->codecs.reply == ReplyKind::kDelta;
  FrameHeader header;
  header.type = FrameType::kFetch;
  header.codec = static_cast<uint8_t>(delta ? StatePart::kReplica : StatePart::kWeights);
  header.key = key->entry.key;
  header.step = exchange.step;
  header.num_elements = key->entry.elements;
  header.element_offset = key->codecs.pull->segment_offset(segment);
  const absl::Status status = requests_->Submit({.frame = Frame{header, {}},
                                                 .server = key->server,
                                                 .catalogue_version = key->catalogue_version,
                                                 .tensor = key->tensor_names[segment]},
                                                nullptr);
  if (!status.ok()) FailJob(status);
}

void Worker::OnAnswer(Key key_id, Step step, absl::StatusOr<Frame> answer) {
  WorkerKey* key = nullptr;
  Exchange* exchange = nullptr;
  {
    MutexLock lock(&mu_);
    if (const auto waiting = rendezvous_.find(key_id); waiting != rendezvous_.end()) {
      Rendezvous& rendezvous = *waiting->second;
      rendezvous_.erase(waiting);
      if (answer.ok())
        rendezvous.values[key_id] = *std::move(answer);
      else
        rendezvous.status = answer.status();
      --rendezvous.left;
      changed_.SignalAll();
      return;
    }
    const auto found = keys_.find(key_id);
    if (found == keys_.end() || found->second->queue.empty()) return;
    key = found->second.get();
    exchange = key->queue.front().get();
    if (!key->in_flight || exchange->step != step) return;
  }
  queue_->Push({.stage = StageQueue::Stage::kDecode,
                .priority = exchange->priority,
                .step = step,
                .key = key_id,
                .run = [this, key, exchange, answer = std::move(answer)] {
                  RunDecode(key, exchange, answer);
                }});
}

void Worker::RunDecode(WorkerKey* key, Exchange* exchange, const absl::StatusOr<Frame>& answer) {
  absl::Status status = answer.status();
  exchange->counted |= status.ok();
  if (status.ok() && answer->header.type == FrameType::kReply) {
    status = CheckReply(*key, *exchange, *answer);
    // Damaged on the way: the server still has it, and takes the same push for a request.
    if (absl::IsDataLoss(status) && ++exchange->damaged < kMaxDamagedReplies) {
      return Submit(key, exchange, nullptr);
    }
    status = WithFields(status, {.tensor = key->tensor_names[0],
                                 .step = std::to_string(exchange->step),
                                 .stage = "decode"});
  }
  if (status.ok() && answer->header.type == FrameType::kReply && LacksReplica(*key, *answer)) {
    NoteAbsent(*key, *answer, exchange);
    return SubmitFetch(key, *exchange);
  }
  if (status.ok() && answer->header.type == FrameType::kValue) {
    status = TakeReplica(key, exchange, exchange->fetched, *answer);
    if (status.ok() && ++exchange->fetched < exchange->segments.size()) {
      return SubmitFetch(key, *exchange);
    }
  } else if (status.ok()) {
    DecodeReply(key, exchange, *answer);
  }
  if (!status.ok() && !exchange->counted) UndoPush(key, exchange);
  Finish(key, status);
}

void Worker::Finish(WorkerKey* key, const absl::Status& status) {
  std::vector<Ended> ended;
  bool start_next = false;
  Step highest;
  {
    MutexLock lock(&mu_);
    const std::unique_ptr<Exchange> exchange = std::move(key->queue.front());
    key->queue.pop_front();
    key->in_flight = false;
    highest_step_ = std::max(highest_step_, exchange->step);
    highest = highest_step_;
    EndSegments(*exchange, status, &ended);
    if (failed_.ok())
      start_next = ClaimFront(key);
    else
      EndQueue(key, failed_, &ended);
  }
  if (start_next) StartEncode(key);
  const TransportStats traffic = transport_->stats();
  control_->ReportProgress({highest, traffic.bytes_sent, traffic.bytes_received});
  Deliver(ended);
}

void Worker::EndSegments(const Exchange& exchange, const absl::Status& status,
                         std::vector<Ended>* ended) {
  for (const ExchangeSegment& segment : exchange.segments) {
    if (!segment.filled) continue;
    Ticket& ticket = tickets_[segment.ticket];
    if (ticket.status.ok()) ticket.status = status;
    ticket.nonfinite |= exchange.nonfinite;
    ticket.all_absent &= segment.absent_everywhere;
    if (--ticket.pending > 0) continue;
    ++tickets_ended_;
    if (ticket.notify) done_.push_back(segment.ticket);
    if (ticket.done) ended->push_back({segment.ticket, ticket.status, std::move(ticket.done)});
  }
  changed_.SignalAll();
}

// What waits behind a failure has not begun, and ends with it.
void Worker::EndQueue(WorkerKey* key, const absl::Status& status, std::vector<Ended>* ended) {
  for (const auto& exchange : key->queue) EndSegments(*exchange, status, ended);
  key->queue.clear();
}

std::vector<Worker::Ended> Worker::EndQueues(const absl::Status& status) {
  std::vector<Ended> ended;
  for (const auto& [id, key] : keys_) {
    if (!key->in_flight) EndQueue(key.get(), status, &ended);
  }
  return ended;
}

void Worker::Deliver(const std::vector<Ended>& ended) {
  for (const Ended& end : ended) {
    end.done(end.ticket, end.status);
    MutexLock lock(&mu_);
    tickets_.erase(end.ticket);
  }
}

void Worker::FailJob(const absl::Status& status) {
  std::vector<Ended> ended;
  {
    MutexLock lock(&mu_);
    if (!failed_.ok()) return;
    failed_ = status;
    ended = EndQueues(failed_);
    changed_.SignalAll();
  }
  requests_->Fail(status);
  Deliver(ended);
}

absl::StatusOr<PushResult> Worker::Wait(TicketId id, absl::Duration timeout) {
  const absl::Time deadline = absl::Now() + timeout;
  {
    MutexLock lock(&mu_);
    for (;;) {
      const auto found = tickets_.find(id);
      if (found == tickets_.end()) return NotFound("no ticket %d is in flight", id);
      if (found->second.pending == 0) {
        const Ticket ticket = std::move(found->second);
        tickets_.erase(found);
        if (!ticket.status.ok()) return ticket.status;
        return PushResult{ticket.step, ticket.all_absent && !ticket.nonfinite, ticket.nonfinite};
      }
      if (absl::Now() >= deadline) return DescribeWait(found->second);
      changed_.WaitUntil(&mu_, deadline);
    }
  }
}

// Names the first of the ticket's partitions that is not done, its stage, and whom it waits for.
absl::Status Worker::DescribeWait(const Ticket& ticket) const {
  const Tensor& tensor = tensors_[ticket.tensor];
  ErrorFields fields{
      .tensor = tensor.declaration.name, .step = std::to_string(ticket.step), .stage = "exchange"};
  for (const TensorPart& part : tensor.parts) {
    for (const auto& exchange : part.key->queue) {
      if (exchange->step != ticket.step) continue;
      for (size_t i = 0; i < exchange->segments.size(); ++i) {
        if (exchange->segments[i].filled) continue;
        fields.stage = "assemble";
        fields.waiting_for = "this worker's own push of '" + part.key->tensor_names[i] +
                             "', which shares a frame with it";
        return WithFields(DeadlineExceeded("still in flight"), fields);
      }
      fields.waiting_for = requests_->WaitingFor(part.key->entry.key);
      if (fields.waiting_for.empty()) fields.stage = "encode or decode";
      return WithFields(DeadlineExceeded("still in flight"), fields);
    }
  }
  return WithFields(DeadlineExceeded("still in flight"), fields);
}

absl::StatusOr<TicketId> Worker::NextDone(absl::Duration timeout) {
  const absl::Time deadline = absl::Now() + timeout;
  MutexLock lock(&mu_);
  for (;;) {
    if (!done_.empty()) {
      const TicketId id = done_.front();
      done_.pop_front();
      return id;
    }
    if (wakes_ > 0) {
      --wakes_;
      return Cancelled("woken");
    }
    if (failed_.code() == absl::StatusCode::kCancelled) return failed_;
    if (absl::Now() >= deadline) return DeadlineExceeded("no ticket ended");
    changed_.WaitUntil(&mu_, deadline);
  }
}

void Worker::Wake() {
  MutexLock lock(&mu_);
  ++wakes_;
  changed_.SignalAll();
}

absl::Status Worker::Barrier(const std::string& name, absl::Duration timeout) {
  {
    MutexLock lock(&mu_);
    BDN_RETURN_IF_ERROR(CheckTakesPart());
  }
  return control_->Barrier(name, timeout);
}

// DeadlineExceeded names something that was started here and that its server may not have.
absl::Status Worker::CheckHandedOver() const {
  for (const auto& [id, key] : keys_) {
    if (!key->in_flight) continue;
    const bool is_last = key->queue.size() == 1 || !key->queue[1]->is_complete();
    if (is_last && requests_->IsAccepted(id)) continue;
    for (const ExchangeSegment& segment : key->queue.front()->segments) {
      if (segment.filled) return DescribeWait(tickets_.at(segment.ticket));
    }
  }
  for (const auto& [id, rendezvous] : rendezvous_) {
    if (requests_->IsAccepted(id)) continue;
    return DeadlineExceeded("tensor '%s': a call is in flight", keys_.at(id)->tensor_names[0]);
  }
  return absl::OkStatus();
}

absl::Status Worker::Leave(absl::Duration timeout) {
  const absl::Time deadline = absl::Now() + timeout;
  {
    MutexLock lock(&mu_);
    if (left_) return absl::OkStatus();
    ++leaving_;
    // Others give up on what servers have not got when we leave.
    absl::Status status = CheckHandedOver();
    while (failed_.ok() && !status.ok() && absl::Now() < deadline) {
      changed_.WaitUntil(&mu_, std::min(deadline, absl::Now() + kHandOverPoll));
      status = CheckHandedOver();
    }
    if (!failed_.ok()) return failed_;
    if (!status.ok()) {
      --leaving_;
      return status;
    }
  }
  BDN_RETURN_IF_ERROR(control_->Leave(absl::OkStatus(), timeout));
  const absl::Status over = Aborted("all workers have left the job");
  std::vector<Ended> ended;
  {
    MutexLock lock(&mu_);
    left_ = true;
    ended = EndQueues(over);
  }
  requests_->Fail(over);
  Deliver(ended);
  return absl::OkStatus();
}

absl::Status Worker::Abort(const std::string& reason) {
  const absl::Status status = Aborted("%s", reason);
  BDN_RETURN_IF_ERROR(control_->Leave(status, absl::ZeroDuration()));
  FailJob(status);
  return absl::OkStatus();
}

std::string Worker::StatsJson() const {
  const TransportStats traffic = transport_->stats();
  const RequestStats exchange = requests_->stats();
  MutexLock lock(&mu_);
  return absl::StrFormat(
      "{\"rank\": %d, \"size\": %d, \"step\": %d, \"tensors\": %d, \"tickets_done\": %d, "
      "\"bytes_pushed\": %d, \"bytes_pulled\": %d, \"frames_sent\": %d, \"frames_received\": %d, "
      "\"frames_malformed\": %d, \"frames_dropped\": %d, \"probes_sent\": %d, \"resends\": %d}",
      rank(), size(), highest_step_, tensors_.size(), tickets_ended_, traffic.bytes_sent,
      traffic.bytes_received, traffic.frames_sent, traffic.frames_received,
      traffic.frames_malformed, exchange.frames_dropped, exchange.probes_sent, exchange.resends);
}

}  // namespace bdn
