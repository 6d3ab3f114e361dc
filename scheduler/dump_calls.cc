#include "scheduler/dump_calls.h"

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "common/base/log.h"
#include "common/base/secret.h"
#include "common/base/status.h"
#include "common/cluster/control_channel.h"
#include "common/cluster/control_messages.h"
#include "proto/control.pb.h"

namespace bdn {
namespace {

namespace wire = bandoneon::control;

constexpr absl::Duration kTick = absl::Milliseconds(200);
// A caller that takes nothing for so long is let go, because others wait for their turn.
constexpr absl::Duration kCallerPatience = absl::Seconds(30);

uint64_t RandomNumber() {
  uint64_t number;
  std::memcpy(&number, RandomSecret().data(), sizeof(number));
  return number;
}

// Returns what people are told of a node.
NodeInfo FactsOf(const NodeInfo& node) {
  return {.id = node.id, .role = node.role, .rank = node.rank, .host = node.host};
}

}  // namespace

// ---- the caller's stream

void DumpStream::OnRequest(const grpc::ByteBuffer& request) {
  wire::DumpRequest message;
  absl::Status status = ParseRequest(request, &message);
  absl::StatusOr<DumpRequest> asked = status.ok() ? Read(message) : status;
  if (asked.ok()) status = all_->Begin(this, *asked);
  if (!asked.ok()) status = asked.status();
  if (!status.ok()) Finish(status);
}

void DumpStream::Send(const wire::DumpPiece& message, NodeId node, absl::Time now) {
  writing_since_ = now;
  passing_ = node;
  call_->Write(ToBuffer(message));
}

void DumpStream::OnWritten(bool ok) {
  const NodeId passed = std::exchange(passing_, 0);
  writing_since_.reset();
  // A broken connection is told by OnDone.
  if (ok && !has_end_) all_->OnPassedOn(passed);
  if (has_end_) FinishNow();
}

void DumpStream::OnDone(bool) {
  is_over_ = true;
  all_->End(this);
  Finish(absl::OkStatus());
}

void DumpStream::Finish(const absl::Status& status) {
  if (has_end_) return;
  has_end_ = true;
  end_ = status;
  if (!writing_since_) FinishNow();
}

void DumpStream::FinishNow() {
  if (std::exchange(is_finishing_, true)) return;
  call_->Finish(end_);
}

// ---- the dump

DumpCalls::DumpCalls(ServiceCore* core, std::function<void()> step_streams)
    : core_(core),
      step_streams_(std::move(step_streams)),
      // A node ignores an order that it has heard, also of the scheduler before this one.
      latest_number_(RandomNumber()),
      tick_([this](bool) { core_->work()->Post([this] { OnTick(); }); }) {}

std::optional<DumpOrder> DumpCalls::OrderFor(NodeId node) const {
  MutexLock lock(&mu_);
  const auto found = orders_.find(node);
  if (found == orders_.end()) return std::nullopt;
  return found->second;
}

absl::Status DumpCalls::Begin(DumpStream* stream, const DumpRequest& request) {
  if (is_closed_) return Cancelled("the scheduler is closing");
  const absl::Time now = core_->clock()->Now();
  if (stream_ != nullptr) {
    return FailedPrecondition(
        "another dump of this job was begun %.1f s ago, and one is taken at a time: ask again when "
        "it has ended",
        absl::ToDoubleSeconds(now - state_->begun()));
  }
  std::vector<NodeInfo> here;
  std::string job_id;
  absl::Status status;
  core_->host()->Read([&](const Job& job, absl::Time) {
    job_id = job.config().job_id;
    if (job.state() == Job::State::kWaiting) {
      status = FailedPrecondition("the job has not begun, and records nothing: it waits for %s",
                                  job.MissingNodes());
    } else if (job.state() == Job::State::kFailed) {
      status = FailedPrecondition("the job has failed, and its nodes are gone: %s",
                                  job.failure().message());
    } else if (job.state() == Job::State::kDone) {
      status = FailedPrecondition("the job is done, and its nodes are gone");
    }
    for (const auto& [id, member] : job.table().members()) {
      if (member.is_here() && !member.is_candidate) here.push_back(FactsOf(member.info));
    }
  });
  BDN_RETURN_IF_ERROR(status);
  BDN_ASSIGN_OR_RETURN(DumpState::Nodes nodes, DumpState::Choose(request, std::move(here)));
  LogInfo("%s asks for the recordings of %d nodes", stream->context().peer(), nodes.asked.size());
  if (++latest_number_ == 0) ++latest_number_;
  stream_ = stream;
  is_running_ = true;
  state_.emplace(latest_number_, request, std::move(nodes), now);
  wire::DumpPiece message;
  message.mutable_nodes()->set_job_id(job_id);
  message.mutable_nodes()->set_left_out(static_cast<uint32_t>(state_->nodes().left_out));
  for (const NodeInfo& node : state_->nodes().asked) {
    Write(node, message.mutable_nodes()->add_nodes());
  }
  stream->Send(message, 0, now);
  SetOrders();
  step_streams_();
  Arm();
  return absl::OkStatus();
}

void DumpCalls::SetOrders() {
  MutexLock lock(&mu_);
  orders_.clear();
  if (!state_) return;
  for (const NodeInfo& node : state_->nodes().asked) {
    if (state_->AwaitsFirst(node.id)) orders_[node.id] = state_->order();
  }
}

void DumpCalls::OnPiece(NodeId node, TracePiece piece, Answer answer) {
  if (!state_) return answer(NotFound("nobody waits for a recording of node %d", node));
  const absl::StatusOr<DumpState::Answer> taken = state_->OnPiece(node, std::move(piece));
  if (taken.ok() && *taken == DumpState::Answer::kLater) {
    // The node calls again where its call before was lost, which then has no use.
    Answered(node, Cancelled("the same piece came again"));
    waiting_[node] = std::move(answer);
  } else {
    answer(taken.status());
  }
  SetOrders();
  Step();
}

void DumpCalls::OnNonsense(NodeId node, uint64_t number, const absl::Status& why) {
  if (!state_ || state_->order().number != number) return;
  state_->OnGone(node, why);
  SetOrders();
  Step();
}

void DumpCalls::OnPassedOn(NodeId node) {
  if (!state_) return;
  if (node != 0) {
    state_->OnPassedOn(node, core_->clock()->Now());
    Answered(node, absl::OkStatus());
  }
  Step();
}

void DumpCalls::Answered(NodeId node, const absl::Status& status) {
  auto call = waiting_.extract(node);
  if (!call.empty()) call.mapped()(status);
}

void DumpCalls::Step() {
  if (!stream_->is_ready()) return;
  const std::optional<DumpState::News> news = state_->Next();
  if (!news) {
    if (state_->is_over()) {
      DumpStream* const stream = stream_;
      End(stream);
      stream->Finish(absl::OkStatus());
    }
    return;
  }
  wire::DumpPiece message;
  const bool is_content = !news->content.empty();
  if (is_content) {
    message.mutable_content()->set_node(news->node);
    message.mutable_content()->set_content(news->content);
  } else {
    message.mutable_end()->set_node(news->node);
    Write(news->end, message.mutable_end()->mutable_failure());
  }
  stream_->Send(message, is_content ? news->node : 0, core_->clock()->Now());
}

void DumpCalls::End(DumpStream* stream) {
  if (stream != stream_) return;
  stream_ = nullptr;
  is_running_ = false;
  state_.reset();
  SetOrders();
  while (!waiting_.empty()) {
    Answered(waiting_.begin()->first, NotFound("the dump has ended, and nobody waits for it"));
  }
}

void DumpCalls::Close() {
  is_closed_ = true;
  if (alarm_ != nullptr) alarm_->Cancel();
  if (stream_ == nullptr) return;
  // The caller is told what has come so far, and why no more does: the service gives calls a moment
  // to end.
  EndNodesThatAreGone();
  for (const NodeId node : state_->Open()) {
    state_->OnGone(node, Cancelled("the scheduler is closing"));
  }
  Step();
}

// ---- time

void DumpCalls::Arm() {
  if (is_armed_ || is_closed_) return;
  is_armed_ = true;
  alarm_ = std::make_unique<grpc::Alarm>();
  alarm_->Set(core_->queue(), GrpcDeadline(kTick), &tick_);
}

void DumpCalls::OnJobChanged() {
  if (!is_running_) return;
  core_->work()->Post([this] {
    if (stream_ == nullptr) return;
    EndNodesThatAreGone();
    Step();
  });
}

void DumpCalls::OnTick() {
  is_armed_ = false;
  if (stream_ == nullptr || is_closed_) return;
  const absl::Time now = core_->clock()->Now();
  EndNodesThatAreGone();
  state_->OnTime(now);
  SetOrders();
  const auto since = stream_->writing_since();
  if (since && now - *since > kCallerPatience) {
    LogWarning("%s takes no more of the recordings that it asked for", stream_->context().peer());
    stream_->context().TryCancel();
  }
  Arm();
  Step();
}

void DumpCalls::EndNodesThatAreGone() {
  std::vector<std::pair<NodeId, absl::Status>> gone;
  core_->host()->Read([&](const Job& job, absl::Time) {
    for (const NodeId node : state_->Open()) {
      const MembershipTable::Member* member = job.table().Find(node);
      if (member == nullptr || member->left) {
        gone.emplace_back(node, Aborted("it has left the job"));
      } else if (!member->evicted.ok()) {
        gone.emplace_back(node, member->evicted);
      } else if (!job.failure().ok()) {
        gone.emplace_back(node, Aborted("the job has failed: %s", job.failure().message()));
      }
    }
  });
  for (const auto& [node, why] : gone) state_->OnGone(node, why);
  if (!gone.empty()) SetOrders();
}

}  // namespace bdn
