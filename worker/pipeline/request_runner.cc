#include "worker/pipeline/request_runner.h"

#include "absl/time/clock.h"
#include "common/base/status.h"

namespace bdn {

RequestRunner::RequestRunner(const RequestTable::Options& options, Transport* transport,
                             CompleteFn complete)
    : transport_(transport),
      complete_(std::move(complete)),
      requests_(options, this),
      timer_([this] { Run(); }) {}

RequestRunner::~RequestRunner() { Stop(); }

void RequestRunner::Stop() {
  {
    MutexLock lock(&mu_);
    stopping_ = true;
  }
  wake_.Signal();
  if (timer_.joinable()) timer_.join();
}

absl::Status RequestRunner::SetMembership(std::shared_ptr<const Membership> membership) {
  for (const NodeInfo& server : membership->servers) {
    {
      MutexLock lock(&mu_);
      if (connections_.contains(server.id)) continue;
    }
    auto connection = transport_->Connect(server.data_address);
    if (!connection.ok()) {
      return Annotate(connection.status(),
                      absl::StrFormat("server %d at %s", server.rank, server.data_address));
    }
    MutexLock lock(&mu_);
    connections_[server.id] = *connection;
    nodes_[*connection] = server.id;
  }
  Actions actions;
  {
    MutexLock lock(&mu_);
    requests_.SetMembership(std::move(membership), absl::Now());
    actions = TakeActions();
  }
  Perform(std::move(actions));
  return absl::OkStatus();
}

absl::Status RequestRunner::Submit(RequestTable::Request request, std::function<void()> sent) {
  Actions actions;
  {
    MutexLock lock(&mu_);
    const Key key = request.frame.header.key;
    if (sent) on_sent_[key] = std::move(sent);
    absl::Status status = requests_.Submit(std::move(request), absl::Now());
    if (!status.ok()) {
      on_sent_.erase(key);
      return status;
    }
    actions = TakeActions();
  }
  Perform(std::move(actions));
  return absl::OkStatus();
}

bool RequestRunner::Withdraw(Key key, Step step) {
  MutexLock lock(&mu_);
  return requests_.Withdraw(key, step);
}

void RequestRunner::OnFrame(ConnectionId from, const Frame& frame) {
  Actions actions;
  {
    MutexLock lock(&mu_);
    const auto node = nodes_.find(from);
    if (node == nodes_.end()) return;
    requests_.OnFrame(node->second, frame, absl::Now());
    actions = TakeActions();
  }
  Perform(std::move(actions));
}

void RequestRunner::OnSendDone(NodeId server, Key key, Step step) {
  Actions actions;
  {
    MutexLock lock(&mu_);
    requests_.OnSent(server, key, step, absl::Now());
    if (const auto sent = on_sent_.find(key); sent != on_sent_.end()) {
      actions_.sent.push_back(std::move(sent->second));
      on_sent_.erase(sent);
    }
    actions = TakeActions();
  }
  Perform(std::move(actions));
}

void RequestRunner::Fail(const absl::Status& status) {
  Actions actions;
  {
    MutexLock lock(&mu_);
    requests_.Fail(status);
    actions = TakeActions();
  }
  Perform(std::move(actions));
}

bool RequestRunner::IsAccepted(Key key) const {
  MutexLock lock(&mu_);
  return requests_.IsAccepted(key);
}

std::string RequestRunner::WaitingFor(Key key) const {
  MutexLock lock(&mu_);
  return requests_.WaitingFor(key);
}

RequestStats RequestRunner::stats() const {
  MutexLock lock(&mu_);
  return requests_.stats();
}

// Called by the state machine, under mu_.
void RequestRunner::Send(NodeId server, Frame frame) ABSL_NO_THREAD_SAFETY_ANALYSIS {
  actions_.sends.push_back({server, std::move(frame)});
}

void RequestRunner::Complete(Key key, Step step,
                             absl::StatusOr<Frame> answer) ABSL_NO_THREAD_SAFETY_ANALYSIS {
  actions_.answers.push_back({key, step, std::move(answer)});
  if (const auto sent = on_sent_.find(key); sent != on_sent_.end()) {
    actions_.sent.push_back(std::move(sent->second));
    on_sent_.erase(sent);
  }
}

RequestRunner::Actions RequestRunner::TakeActions() {
  if (requests_.NextTick() < sleeping_until_) wake_.Signal();
  return std::exchange(actions_, Actions{});
}

void RequestRunner::Perform(Actions actions) {
  for (Outgoing& out : actions.sends) {
    ConnectionId connection = 0;
    {
      MutexLock lock(&mu_);
      connection = connections_[out.server];
    }
    const Key key = out.frame.header.key;
    const Step step = out.frame.header.step;
    transport_->Send(connection, std::move(out.frame),
                     [this, server = out.server, key, step](const absl::Status&) {
                       // A frame that could not be sent is asked about like one that was lost.
                       OnSendDone(server, key, step);
                     });
  }
  for (auto& sent : actions.sent) sent();
  for (Answer& answer : actions.answers)
    complete_(answer.key, answer.step, std::move(answer.frame));
}

void RequestRunner::Run() {
  for (;;) {
    Actions actions;
    {
      MutexLock lock(&mu_);
      while (!stopping_ && requests_.NextTick() > absl::Now()) {
        sleeping_until_ = requests_.NextTick();
        wake_.WaitUntil(&mu_, sleeping_until_);
      }
      sleeping_until_ = absl::InfinitePast();
      if (stopping_) return;
      requests_.OnTick(absl::Now());
      actions = std::exchange(actions_, Actions{});
    }
    Perform(std::move(actions));
  }
}

}  // namespace bdn
