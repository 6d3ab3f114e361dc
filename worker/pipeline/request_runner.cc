#include "worker/pipeline/exchange_runner.h"

#include "absl/time/clock.h"
#include "common/base/status.h"

namespace bdn {

ExchangeRunner::ExchangeRunner(const Exchange::Options& options, Transport* transport,
                               CompleteFn complete)
    : transport_(transport),
      complete_(std::move(complete)),
      exchange_(options, this),
      timer_([this] { Run(); }) {}

ExchangeRunner::~ExchangeRunner() { Stop(); }

void ExchangeRunner::Stop() {
  {
    MutexLock lock(&mu_);
    stopping_ = true;
  }
  wake_.Signal();
  if (timer_.joinable()) timer_.join();
}

absl::Status ExchangeRunner::SetMembership(std::shared_ptr<const Membership> membership) {
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
    exchange_.SetMembership(std::move(membership), absl::Now());
    actions = TakeActions();
  }
  Perform(std::move(actions));
  return absl::OkStatus();
}

absl::Status ExchangeRunner::Submit(Exchange::Question question, std::function<void()> sent) {
  Actions actions;
  {
    MutexLock lock(&mu_);
    const Key key = question.frame.header.key;
    if (sent) on_sent_[key] = std::move(sent);
    absl::Status status = exchange_.Submit(std::move(question), absl::Now());
    if (!status.ok()) {
      on_sent_.erase(key);
      return status;
    }
    actions = TakeActions();
  }
  Perform(std::move(actions));
  return absl::OkStatus();
}

bool ExchangeRunner::Withdraw(Key key, Step step) {
  MutexLock lock(&mu_);
  return exchange_.Withdraw(key, step);
}

void ExchangeRunner::OnFrame(ConnectionId from, const Frame& frame) {
  Actions actions;
  {
    MutexLock lock(&mu_);
    const auto node = nodes_.find(from);
    if (node == nodes_.end()) return;
    exchange_.OnFrame(node->second, frame, absl::Now());
    actions = TakeActions();
  }
  Perform(std::move(actions));
}

void ExchangeRunner::OnSendDone(NodeId server, Key key, Step step) {
  Actions actions;
  {
    MutexLock lock(&mu_);
    exchange_.OnSent(server, key, step, absl::Now());
    if (const auto sent = on_sent_.find(key); sent != on_sent_.end()) {
      actions_.sent.push_back(std::move(sent->second));
      on_sent_.erase(sent);
    }
    actions = TakeActions();
  }
  Perform(std::move(actions));
}

void ExchangeRunner::Fail(const absl::Status& status) {
  Actions actions;
  {
    MutexLock lock(&mu_);
    exchange_.Fail(status);
    actions = TakeActions();
  }
  Perform(std::move(actions));
}

bool ExchangeRunner::IsHeld(Key key) const {
  MutexLock lock(&mu_);
  return exchange_.IsHeld(key);
}

std::string ExchangeRunner::WaitingFor(Key key) const {
  MutexLock lock(&mu_);
  return exchange_.WaitingFor(key);
}

ExchangeStats ExchangeRunner::stats() const {
  MutexLock lock(&mu_);
  return exchange_.stats();
}

// Called by the state machine, under mu_.
void ExchangeRunner::Send(NodeId server, Frame frame) ABSL_NO_THREAD_SAFETY_ANALYSIS {
  actions_.sends.push_back({server, std::move(frame)});
}

void ExchangeRunner::Complete(Key key, Step step,
                              absl::StatusOr<Frame> answer) ABSL_NO_THREAD_SAFETY_ANALYSIS {
  actions_.answers.push_back({key, step, std::move(answer)});
  if (const auto sent = on_sent_.find(key); sent != on_sent_.end()) {
    actions_.sent.push_back(std::move(sent->second));
    on_sent_.erase(sent);
  }
}

ExchangeRunner::Actions ExchangeRunner::TakeActions() {
  if (exchange_.NextTick() < sleeping_until_) wake_.Signal();
  return std::exchange(actions_, Actions{});
}

void ExchangeRunner::Perform(Actions actions) {
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

void ExchangeRunner::Run() {
  for (;;) {
    Actions actions;
    {
      MutexLock lock(&mu_);
      while (!stopping_ && exchange_.NextTick() > absl::Now()) {
        sleeping_until_ = exchange_.NextTick();
        wake_.WaitUntil(&mu_, sleeping_until_);
      }
      sleeping_until_ = absl::InfinitePast();
      if (stopping_) return;
      exchange_.OnTick(absl::Now());
      actions = std::exchange(actions_, Actions{});
    }
    Perform(std::move(actions));
  }
}

}  // namespace bdn
