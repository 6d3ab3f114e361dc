#include "worker/pipeline/request_runner.h"

#include <algorithm>
#include <utility>

#include "common/base/crc32c.h"
#include "common/base/log.h"
#include "common/base/status.h"
#include "common/base/thread.h"

namespace bdn {
namespace {

// The time for which a server may be silent at the beginning of a job before that is logged, and
// the time between further lines.
constexpr absl::Duration kFirstReport = absl::Seconds(5);
constexpr absl::Duration kNextReports = absl::Seconds(30);

uint64_t BytesOf(const Frame& frame) { return kHeaderBytes + frame.payload.size(); }

absl::Status Unreachable(const NodeInfo& server, size_t others) {
  const Endpoint* const network = NetworkEndpoint(server.endpoints);
  const bool is_advertised = network != nullptr && network->bound != network->address;
  return Unavailable(
      "server %d (node %d, %s) does not answer at %s%s%s: check that its --advertise (or --listen) "
      "leads to it from this host, and that no firewall is between them",
      server.rank, server.id, server.host, NetworkUrl(server.endpoints),
      is_advertised
          ? ", which it advertises and which must lead to where it listens, " + BoundUrlOf(*network)
          : "",
      others > 0 ? absl::StrFormat(" (nor do %d others)", others) : "");
}

}  // namespace

RequestRunner::RequestRunner(const RequestTable::Options& options, Transport* transport,
                             const Clock* clock, StageTimes* stages, HistoryFile* history,
                             int connections)
    : transport_(transport),
      secret_(options.token),
      timeout_(options.timeout),
      clock_(clock),
      stages_(stages),
      history_(history),
      table_(options),
      links_(connections),
      timer_(StartThread("bdn-requests", [this] { Run(); })) {}

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
  // Connections come before the table's membership, because that sends hellos at once.
  for (const NodeInfo& server : membership->servers) {
    {
      MutexLock lock(&mu_);
      if (links_.Has(server.id)) continue;
    }
    auto connection = Connect(server);
    if (!connection.ok()) {
      return Annotate(connection.status(), absl::StrFormat("server %d at %s", server.rank,
                                                           NetworkUrl(server.endpoints)));
    }
    MutexLock lock(&mu_);
    (void)links_.Set(server.id, *connection);  // it has had none
    servers_[server.id] = server;
  }
  Work work;
  std::vector<ConnectionId> gone;
  {
    MutexLock lock(&mu_);
    for (auto server = servers_.begin(); server != servers_.end();) {
      const auto next = server++;
      if (membership->Find(next->first) != nullptr) continue;
      const std::vector<ConnectionId> its = links_.Remove(next->first);
      gone.insert(gone.end(), its.begin(), its.end());
      servers_.erase(next);
    }
    work = Prepare(table_.SetMembership(std::move(membership), clock_->Now()));
  }
  // A server that was stopped, and goes on, sends nothing that could reach this worker.
  for (const ConnectionId connection : gone) transport_->Disconnect(connection);
  Perform(std::move(work));
  return absl::OkStatus();
}

absl::Status RequestRunner::AwaitServers(absl::Time deadline) {
  absl::Time report = clock_->Now() + kFirstReport;
  for (;;) {
    absl::Status status;
    {
      MutexLock lock(&mu_);
      while (table_.failed().ok() && !table_.Silent().empty() &&
             clock_->Now() < std::min(report, deadline)) {
        clock_->WaitUntil(&heard_, &mu_, std::min(report, deadline));
      }
      const std::vector<NodeId> silent = table_.Silent();
      if (!table_.failed().ok() || silent.empty()) return table_.failed();
      status = Unreachable(servers_[silent[0]], silent.size() - 1);
    }
    if (clock_->Now() >= deadline) return status;
    LogWarning("no answer so far: %s", status.message());
    report += kNextReports;
  }
}

absl::Status RequestRunner::Submit(RequestTable::Request request, Callbacks callbacks) {
  Work work;
  {
    MutexLock lock(&mu_);
    const Key key = request.frame.header.key;
    const Step step = request.frame.header.step;
    const uint64_t payload_bytes = request.frame.payload.size();
    const bool is_push = request.frame.header.type == FrameType::kPush;
    if (is_push) NotePush(request.frame);
    BDN_ASSIGN_OR_RETURN(RequestTable::Actions actions,
                         table_.Submit(std::move(request), clock_->Now()));
    const bool is_counted = callbacks.sent != nullptr;
    const StageSpan span = is_counted ? StageSpan(stages_) : StageSpan();
    open_[key] = {std::move(callbacks),
                  payload_bytes,
                  is_push,
                  {.key = key, .step = step},
                  is_counted && stages_ != nullptr,
                  span,
                  span};
    work = Prepare(std::move(actions));
  }
  Perform(std::move(work));
  return absl::OkStatus();
}

bool RequestRunner::Withdraw(Key key, Step step) {
  MutexLock lock(&mu_);
  if (!table_.Withdraw(key, step)) return false;
  open_.erase(key);
  return true;
}

void RequestRunner::OnFrame(ConnectionId from, Frame frame) {
  // Other frames have readers that do not expect their bytes to change.
  if (frame.header.type != FrameType::kReply) Own(&frame);
  Work work;
  {
    MutexLock lock(&mu_);
    // A connection that Reconnect has replaced is unknown, so its late frames are dropped.
    const NodeId server = links_.ServerOf(from);
    if (server == 0) return;
    const absl::Time now = clock_->Now();
    links_.OnHeard(from);
    work = Prepare(table_.OnFrame(server, frame, now));
    if (links_.IsDue(server, now)) {
      looks_.push_back(server);
      wake_.Signal();
    }
    // Only these can end the wait of AwaitServers: the first frame from a server is one of them.
    if (frame.header.type == FrameType::kHello || frame.header.type == FrameType::kError) {
      heard_.SignalAll();
    }
  }
  Perform(std::move(work));
}

absl::StatusOr<ConnectionId> RequestRunner::Connect(const NodeInfo& server) {
  return transport_->Connect({server.endpoints, server.public_key, secret_});
}

// Called on the timer's thread alone, so that the hello that follows is sent on the new connection.
// A server that cannot be reached is no error here: it is tried again.
void RequestRunner::Reconnect(const NodeInfo& server) {
  const absl::StatusOr<ConnectionId> connection = Connect(server);
  LogWarning("server %d at %s is silent: %s", server.rank, NetworkUrl(server.endpoints),
             connection.ok() ? "connected anew" : connection.status().ToString());
  if (!connection.ok()) return;
  std::vector<ConnectionId> former = {*connection};
  {
    MutexLock lock(&mu_);
    if (links_.Has(server.id)) former = links_.Set(server.id, *connection);  // else it is out since
  }
  for (const ConnectionId each : former) transport_->Disconnect(each);
}

void RequestRunner::LookAt(NodeId server) {
  std::vector<ConnectionId> connections;
  {
    MutexLock lock(&mu_);
    connections = links_.Of(server);
  }
  std::vector<ConnectionFacts> facts;
  for (const ConnectionId each : connections) facts.push_back(transport_->FactsOf(each));
  int more = 0;
  NodeInfo info;
  {
    MutexLock lock(&mu_);
    more = links_.WantsMore(server, facts, clock_->Now());
    const auto found = servers_.find(server);
    if (found == servers_.end()) return;
    info = found->second;
  }
  if (more <= 0) return;
  LogInfo("server %d at %s has a round trip of %s: %d connections to it", info.rank,
          NetworkUrl(info.endpoints), absl::FormatDuration(facts[0].round_trip),
          static_cast<int>(connections.size()) + more);
  for (int i = 0; i < more; ++i) AddConnection(info, connections[0]);
}

// The new connection takes frames once the server has answered this hello on it.
void RequestRunner::AddConnection(const NodeInfo& server, ConnectionId first) {
  const absl::StatusOr<ConnectionId> connection = Connect(server);
  if (!connection.ok()) {
    return LogWarning("server %d at %s gets no further connection: %s", server.rank,
                      NetworkUrl(server.endpoints), connection.status().message());
  }
  Work::Send hello;
  {
    MutexLock lock(&mu_);
    if (links_.Add(server.id, first, *connection)) {
      links_.OnQueued(*connection, BytesOf(hello_));
      hello = {*connection, hello_, 0};
    }
  }
  if (hello.to == 0) return transport_->Disconnect(*connection);
  PerformSend(std::move(hello));
}

void RequestRunner::OnSendDone(ConnectionId to, uint64_t bytes, Key key, uint64_t request) {
  std::function<void()> sent;
  {
    MutexLock lock(&mu_);
    links_.OnSent(to, bytes);
    const bool is_callers = table_.OnSent(key, request, clock_->Now());
    // The timer thread is woken only if something falls due before it wakes by itself; most frames
    // change no such time.
    if (table_.NextTick() < sleeping_until_) wake_.Signal();
    const auto open = open_.find(key);
    if (!is_callers || open == open_.end()) return;
    sent = TakeSent(&open->second);
  }
  if (sent) sent();
}

void RequestRunner::NotePush(const Frame& push) {
  if (history_ == nullptr) return;
  const FrameHeader& header = push.header;
  history_->Write("push", absl::StrFormat(",\"key\":\"%s\",\"step\":%d,\"crc\":%d,\"flags\":%d",
                                          header.key.ToString(), header.step,
                                          Crc32c(push.payload.span()), header.flags));
}

void RequestRunner::NoteEnd(const RequestTable::Answer& answer) {
  // One that has ended unknown is asked about again.
  if (history_ == nullptr || answer.outcome.is_unknown) return;
  const std::string key = answer.key.ToString();
  if (!answer.outcome.frame.ok()) {
    return history_->Write(
        "failed",
        absl::StrFormat(",\"key\":\"%s\",\"step\":%d%s", key, answer.step,
                        HistoryText("why", std::string(answer.outcome.frame.status().message()))));
  }
  const Frame& reply = *answer.outcome.frame;
  history_->Write(
      "reply", absl::StrFormat(",\"key\":\"%s\",\"step\":%d,\"epoch\":%d,\"crc\":%d,\"flags\":%d",
                               key, answer.step, reply.header.epoch, Crc32c(reply.payload.span()),
                               reply.header.flags));
}

std::function<void()> RequestRunner::TakeSent(Open* open) {
  if (open->callbacks.sent != nullptr) {
    open->span = open->span.End(Stage::kSend, open->payload_bytes, open->id);
  }
  return std::exchange(open->callbacks.sent, nullptr);
}

void RequestRunner::Fail(const absl::Status& status) {
  Work work;
  {
    MutexLock lock(&mu_);
    if (history_ != nullptr) {
      history_->Write(IsEvicted(status) ? "evicted" : "ended",
                      HistoryText("why", std::string(status.message())));
    }
    work = Prepare(table_.Fail(status));
    heard_.SignalAll();
  }
  Perform(std::move(work));
}

void RequestRunner::AddKeys(std::vector<RecoveryTable::KeyFacts> keys) {
  MutexLock lock(&mu_);
  for (RecoveryTable::KeyFacts& key : keys) table_.AddKey(std::move(key));
  if (table_.NextTick() < sleeping_until_) wake_.Signal();
}

void RequestRunner::BeginAt(Key key, const KeyPosition& position) {
  MutexLock lock(&mu_);
  table_.BeginAt(key, position);
}

void RequestRunner::RetireKey(Key key) {
  MutexLock lock(&mu_);
  table_.Retire(key);
}

std::vector<NodeWait> RequestRunner::Unheard() const {
  MutexLock lock(&mu_);
  return table_.Unheard(clock_->Now());
}

RecoveryStats RequestRunner::recovery_stats() const {
  MutexLock lock(&mu_);
  return table_.recovery_stats();
}

bool RequestRunner::IsAccepted(Key key) const {
  MutexLock lock(&mu_);
  return table_.IsAccepted(key);
}

std::string RequestRunner::WaitingFor(Key key) const {
  MutexLock lock(&mu_);
  return table_.WaitingFor(key);
}

std::vector<LinkTotals> RequestRunner::Links() const {
  std::vector<std::pair<NodeId, std::vector<ConnectionId>>> of_servers;
  {
    MutexLock lock(&mu_);
    for (const auto& [server, info] : servers_) of_servers.emplace_back(server, links_.Of(server));
  }
  std::vector<LinkTotals> links;
  for (const auto& [server, connections] : of_servers) {
    links.push_back(TotalsOf(server, connections, *transport_));
  }
  return links;
}

size_t RequestRunner::Connections() const {
  MutexLock lock(&mu_);
  return links_.size();
}

RequestStats RequestRunner::stats() const {
  MutexLock lock(&mu_);
  return table_.stats();
}

RequestRunner::Work RequestRunner::Prepare(RequestTable::Actions actions) {
  Work work;
  for (const NodeId server : actions.reconnects) {
    const auto info = servers_.find(server);
    if (info != servers_.end()) work.reconnects.push_back(info->second);
  }
  for (RequestTable::Outgoing& out : actions.sends) {
    PrepareSend(std::move(out), &work);
  }
  for (RequestTable::Answer& answer : actions.answers) {
    auto ended = open_.extract(answer.key);
    // Withdrawn: its caller has gone.
    if (ended.empty()) continue;
    Open& open = ended.mapped();
    if (open.is_push) NoteEnd(answer);
    // An answer may overtake the transport's notice that the frame is out; the budget is given back
    // in any case, and before `answered`.
    open.callbacks.sent = TakeSent(&open);
    const absl::StatusOr<Frame>& frame = answer.outcome.frame;
    if (frame.ok()) NoteReply(open, frame->payload.size());
    work.ends.push_back({std::move(open.callbacks), std::move(answer.outcome)});
  }
  if (table_.NextTick() < sleeping_until_) wake_.Signal();
  return work;
}

void RequestRunner::PrepareSend(RequestTable::Outgoing out, Work* work) {
  if (out.frame.header.type == FrameType::kHello) {
    hello_ = out.frame;
    for (const ConnectionId each : links_.Of(out.server)) {
      links_.OnHello(each);
      Queue({each, out.frame, out.request}, work);
    }
    return;
  }
  ConnectionId to = links_.Choose(out.server);
  if (to == 0) return;
  const auto open = open_.find(out.frame.header.key);
  if (open != open_.end()) {
    // A probe follows the frame that it asks about: on another connection it might overtake it, and
    // the server would ask for a frame that is on its way.
    const bool follows = out.request == 0 && links_.ServerOf(open->second.sent_on) == out.server;
    if (follows) to = open->second.sent_on;
    open->second.server = out.server;
    open->second.sent_on = to;
  }
  Queue({to, std::move(out.frame), out.request}, work);
}

void RequestRunner::Queue(Work::Send send, Work* work) {
  links_.OnQueued(send.to, BytesOf(send.frame));
  work->sends.push_back(std::move(send));
}

void RequestRunner::NoteReply(const Open& open, uint64_t payload_bytes) {
  const StageSpan now = open.span.End(Stage::kWait, payload_bytes, open.id);
  const auto server = servers_.find(open.server);
  // Requests that no stage counts have no begin.
  if (!open.is_counted || server == servers_.end()) return;
  PeerWait& wait = reply_waits_[server->second.rank];
  wait.rank = server->second.rank;
  ++wait.items;
  wait.ns += now.NsAfter(open.begun);
}

std::vector<PeerWait> RequestRunner::ReplyWaits() const {
  MutexLock lock(&mu_);
  std::vector<PeerWait> all;
  if (reply_waits_.size() > kMostPeerWaits) return all;
  for (const auto& [rank, wait] : reply_waits_) all.push_back(wait);
  return all;
}

size_t RequestRunner::OpenRequests() const {
  MutexLock lock(&mu_);
  return open_.size();
}

void RequestRunner::Perform(Work work) {
  // All of this runs without the lock, as callbacks and the transport may call this object again.
  for (const NodeInfo& server : work.reconnects) Reconnect(server);
  for (Work::Send& send : work.sends) PerformSend(std::move(send));
  for (Work::End& end : work.ends) {
    if (end.callbacks.sent) end.callbacks.sent();
    end.callbacks.answered(std::move(end.outcome));
  }
}

void RequestRunner::PerformSend(Work::Send send) {
  const Key key = send.frame.header.key;
  const uint64_t bytes = BytesOf(send.frame);
  transport_->Send(send.to, std::move(send.frame),
                   [this, to = send.to, bytes, key, request = send.request](const absl::Status&) {
                     // A frame that could not be sent is asked about like one that was lost.
                     OnSendDone(to, bytes, key, request);
                   });
}

void RequestRunner::Run() {
  for (;;) {
    Work work;
    std::vector<NodeId> looks;
    {
      MutexLock lock(&mu_);
      while (!stopping_ && looks_.empty() && table_.NextTick() > clock_->Now()) {
        sleeping_until_ = table_.NextTick();
        clock_->WaitUntil(&wake_, &mu_, sleeping_until_);
      }
      // Awake: nothing need signal this thread, which looks at the table again before it sleeps.
      sleeping_until_ = absl::InfinitePast();
      if (stopping_) return;
      looks.swap(looks_);
      work = Prepare(table_.OnTick(clock_->Now()));
    }
    Perform(std::move(work));
    for (const NodeId server : looks) LookAt(server);
  }
}

}  // namespace bdn
