#include "common/transport/loopback_core.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "common/base/status.h"

namespace bdn {
namespace {

constexpr char kScheme[] = "loopback://";

absl::Status CheckAddress(const std::string& address) {
  if (absl::StartsWith(address, kScheme) && address.size() > sizeof(kScheme) - 1) {
    return absl::OkStatus();
  }
  return InvalidArgument("address \"%s\": expected loopback://name", address);
}

// A transport of the network: an identity in it, and nothing else.
class LoopbackTransport final : public Transport {
 public:
  explicit LoopbackTransport(LoopbackCore* core) : core_(core), id_(core->AddEndpoint()) {}
  ~LoopbackTransport() override {
    core_->Close(id_);
    core_->Join(id_);
    core_->RemoveEndpoint(id_);
  }

  void Start(FrameHandler handler, GoneHandler gone) override {
    core_->Start(id_, std::move(handler), std::move(gone));
  }
  absl::StatusOr<std::vector<Endpoint>> Listen(const std::string& address) override {
    BDN_ASSIGN_OR_RETURN(const std::string bound, core_->Listen(id_, address));
    return std::vector<Endpoint>{EndpointOf(bound)};
  }
  absl::StatusOr<ConnectionId> Connect(const Peer& peer) override {
    const Endpoint* const endpoint = FindEndpoint(peer.endpoints, "loopback");
    if (endpoint == nullptr) {
      return Unimplemented("loopback: the peer offers %s, and not loopback",
                           SchemesOf(peer.endpoints));
    }
    return core_->Connect(id_, UrlOf(*endpoint));
  }
  void Disconnect(ConnectionId connection) override { core_->Disconnect(id_, connection); }
  PublicKey public_key() const override { return {}; }
  LinkSecurity security() const override { return LinkSecurity::kOpen; }
  bool needs_checksums() const override { return true; }
  void Admit(Admission) override {}
  PublicKey KeyOf(ConnectionId) const override { return {}; }
  ConnectionFacts FactsOf(ConnectionId) const override { return {.is_network = true}; }
  void Send(ConnectionId to, Frame frame, SendDone done) override {
    core_->Send(id_, to, std::move(frame), std::move(done));
  }
  std::shared_ptr<MemoryDomain> memory() override { return HostMemory(); }
  TransportStats stats() const override { return core_->stats(id_); }
  void Close() override { core_->Close(id_); }
  void Join() override { core_->Join(id_); }

 private:
  LoopbackCore* const core_;
  const LoopbackCore::EndpointId id_;
};

}  // namespace

std::unique_ptr<Transport> LoopbackCore::MakeTransport() {
  return std::make_unique<LoopbackTransport>(this);
}

absl::StatusOr<std::string> LoopbackCore::Listen(EndpointId id, const std::string& address) {
  BDN_RETURN_IF_ERROR(CheckAddress(address));
  MutexLock lock(&mu_);
  if (endpoints_.at(id).is_closed) return Unavailable("listen at %s: closed", address);
  if (!listeners_.emplace(address, id).second) {
    return AlreadyExists("listen at %s: the address is in use", address);
  }
  // As over TCP, connectors may come before their listener: their frames have waited for it.
  const auto [begin, end] = unbound_.equal_range(address);
  for (auto it = begin; it != end; ++it) BindListener(it->second, id);
  unbound_.erase(begin, end);
  return address;
}

absl::StatusOr<ConnectionId> LoopbackCore::Connect(EndpointId id, const std::string& address) {
  BDN_RETURN_IF_ERROR(CheckAddress(address));
  MutexLock lock(&mu_);
  EndpointState& endpoint = endpoints_.at(id);
  if (endpoint.is_closed) return Unavailable("connect to %s: closed", address);
  auto link = std::make_shared<Link>();
  link->endpoint[0] = id;
  link->id[0] = ++endpoint.last_connection;
  endpoint.ends[link->id[0]] = {link, 0};
  if (const auto it = listeners_.find(address); it != listeners_.end()) {
    BindListener(link, it->second);
  } else {
    unbound_.emplace(address, link);
  }
  return link->id[0];
}

void LoopbackCore::BindListener(const std::shared_ptr<Link>& link, EndpointId listener) {
  EndpointState& endpoint = endpoints_.at(listener);
  link->endpoint[1] = listener;
  link->id[1] = ++endpoint.last_connection;
  endpoint.ends[link->id[1]] = {link, 1};
  while (!link->waiting.empty()) {
    PendingSend send = std::move(link->waiting.front());
    link->waiting.pop_front();
    // A fault may cut the link with any of these frames; those behind it then find it gone.
    if (link->is_open) {
      Enqueue(link.get(), 0, std::move(send));
    } else {
      EnqueueDone(link->endpoint[0], std::move(send.done), Unavailable("connection is gone"));
    }
  }
}

void LoopbackCore::Send(EndpointId id, ConnectionId to, Frame frame, Transport::SendDone done) {
  MutexLock lock(&mu_);
  EndpointState& endpoint = endpoints_.at(id);
  ++endpoint.outstanding;
  const auto it = endpoint.ends.find(to);
  if (endpoint.is_closed) {
    EnqueueDone(id, std::move(done), Unavailable("send: the transport is closed"));
  } else if (it == endpoint.ends.end()) {
    // Names rise from 1, so one that was ever given is gone, and any other was never a connection.
    const bool is_gone = to != 0 && to <= endpoint.last_connection;
    EnqueueDone(id, std::move(done),
                is_gone ? Unavailable("send: connection %d is gone", to)
                        : NotFound("send: no connection %d", to));
  } else if (!it->second.link->is_open) {
    EnqueueDone(id, std::move(done), Unavailable("send: connection %d is gone", to));
  } else if (it->second.link->endpoint[1] == 0) {
    it->second.link->waiting.push_back({std::move(frame), std::move(done)});
  } else {
    Enqueue(it->second.link.get(), it->second.side, {std::move(frame), std::move(done)});
  }
}

void LoopbackCore::Enqueue(Link* link, int side, PendingSend send) {
  const EndpointId sender = link->endpoint[side];
  const EndpointId receiver = link->endpoint[1 - side];
  const ConnectionId from = link->id[1 - side];
  using Fate = LoopbackFaults::Fate;
  const Fate fate = faults_ == nullptr ? Fate::kDeliver : faults_->Decide(&send.frame);
  if (fate == Fate::kCut) {
    EndLink(link);
    EnqueueDone(sender, std::move(send.done), Unavailable("send: the connection was cut"));
    return;
  }
  TransportStats& stats = endpoints_.at(sender).stats;
  ++stats.frames_sent;
  stats.bytes_sent += kHeaderBytes + send.frame.payload.size();
  // A frame that a fault drops or holds back counts as sent: its sender cannot tell the difference.
  if (fate == Fate::kHold) {
    held_.push_back({.endpoint = receiver,
                     .kind = Event::Kind::kFrame,
                     .from = from,
                     .frame = std::move(send.frame)});
  } else if (fate != Fate::kDrop) {
    if (fate == Fate::kDuplicate) EnqueueFrame(receiver, from, send.frame);
    EnqueueFrame(receiver, from, std::move(send.frame));
  }
  EnqueueDone(sender, std::move(send.done), absl::OkStatus());
}

void LoopbackCore::EnqueueFrame(EndpointId to, ConnectionId from, Frame frame) {
  queue_.push_back(
      {.endpoint = to, .kind = Event::Kind::kFrame, .from = from, .frame = std::move(frame)});
  changed_.SignalAll();
}

void LoopbackCore::EnqueueDone(EndpointId owner, Transport::SendDone done, absl::Status status) {
  if (!status.ok()) ++endpoints_.at(owner).stats.sends_failed;
  queue_.push_back({.endpoint = owner, .done = std::move(done), .status = std::move(status)});
  changed_.SignalAll();
}

void LoopbackCore::EndLink(Link* link) {
  if (!link->is_open) return;
  link->is_open = false;
  const auto listener = endpoints_.find(link->endpoint[1]);
  if (listener == endpoints_.end() || listener->second.gone == nullptr) return;
  queue_.push_back(
      {.endpoint = link->endpoint[1], .kind = Event::Kind::kGone, .from = link->id[1]});
  changed_.SignalAll();
}

void LoopbackCore::EndWaiting(Link* link) {
  for (PendingSend& send : link->waiting) {
    EnqueueDone(link->endpoint[0], std::move(send.done), Unavailable("connection is gone"));
  }
  link->waiting.clear();
}

void LoopbackCore::Disconnect(EndpointId id, ConnectionId connection) {
  MutexLock lock(&mu_);
  EndpointState& endpoint = endpoints_.at(id);
  const auto it = endpoint.ends.find(connection);
  if (it == endpoint.ends.end() || it->second.side != 0) return;
  // Held here, as erasing the end may drop the last reference. Frames that are already in the queue
  // are still delivered, as over a network.
  const std::shared_ptr<Link> link = it->second.link;
  endpoint.ends.erase(it);
  std::erase_if(unbound_, [&link](const auto& unbound) { return unbound.second == link; });
  EndLink(link.get());
  EndWaiting(link.get());
}

void LoopbackCore::Close(EndpointId id) {
  MutexLock lock(&mu_);
  EndpointState& endpoint = endpoints_.at(id);
  if (endpoint.is_closed) return;
  endpoint.is_closed = true;
  std::erase_if(listeners_, [id](const auto& listener) { return listener.second == id; });
  std::erase_if(unbound_, [id](const auto& unbound) { return unbound.second->endpoint[0] == id; });
  for (auto& [connection, end] : endpoint.ends) {
    EndLink(end.link.get());
    EndWaiting(end.link.get());
  }
  for (Event& event : queue_) {
    // Completions in the queue are changed, not dropped: each SendDone must run, and none of them
    // with OK after Close.
    if (event.kind != Event::Kind::kDone || event.endpoint != id || !event.status.ok()) continue;
    event.status = Unavailable("send: the transport was closed");
    ++endpoint.stats.sends_failed;
  }
}

void LoopbackCore::Join(EndpointId id) {
  while (true) {
    Event event;
    {
      MutexLock lock(&mu_);
      const EndpointState& endpoint = endpoints_.at(id);
      // Nobody may step any more, so this thread runs the completions that are left. A callback
      // that runs on another thread is waited for.
      const auto is_mine = [id](const Event& e) {
        return e.kind == Event::Kind::kDone && e.endpoint == id;
      };
      const auto it = std::find_if(queue_.begin(), queue_.end(), is_mine);
      if (it == queue_.end()) {
        if (endpoint.running == 0 && endpoint.outstanding == 0) return;
        changed_.Wait(&mu_);
        continue;
      }
      event = std::move(*it);
      queue_.erase(it);
    }
    Run(std::move(event));
  }
}

LoopbackCore::Event LoopbackCore::TakeNext() {
  const size_t at = faults_ == nullptr ? 0 : faults_->ChooseNext(queue_.size());
  Event event = std::move(queue_[at]);
  queue_.erase(queue_.begin() + static_cast<ptrdiff_t>(at));
  return event;
}

bool LoopbackCore::Step() {
  Event event;
  {
    MutexLock lock(&mu_);
    if (queue_.empty()) return false;
    event = TakeNext();
  }
  Run(std::move(event));
  return true;
}

bool LoopbackCore::StepFrame(const std::function<bool(const FrameHeader& header)>& match) {
  Event event;
  {
    MutexLock lock(&mu_);
    const auto it = std::find_if(queue_.begin(), queue_.end(), [&match](const Event& e) {
      return e.kind == Event::Kind::kFrame && match(e.frame.header);
    });
    if (it == queue_.end()) return false;
    event = std::move(*it);
    queue_.erase(it);
  }
  Run(std::move(event));
  return true;
}

bool LoopbackCore::WaitAndStep() {
  Event event;
  {
    MutexLock lock(&mu_);
    while (queue_.empty() && !is_interrupted_) changed_.Wait(&mu_);
    if (is_interrupted_) return false;
    event = TakeNext();
  }
  Run(std::move(event));
  return true;
}

void LoopbackCore::Interrupt() {
  MutexLock lock(&mu_);
  is_interrupted_ = true;
  changed_.SignalAll();
}

size_t LoopbackCore::num_pending() const {
  MutexLock lock(&mu_);
  return queue_.size();
}

std::vector<FrameHeader> LoopbackCore::PendingFrames() const {
  MutexLock lock(&mu_);
  std::vector<FrameHeader> headers;
  for (const Event& event : queue_) {
    if (event.kind == Event::Kind::kFrame) headers.push_back(event.frame.header);
  }
  return headers;
}

void LoopbackCore::Run(Event event) {
  switch (event.kind) {
    case Event::Kind::kFrame:
      return RunFrame(std::move(event));
    case Event::Kind::kGone:
      return RunGone(event);
    case Event::Kind::kDone:
      return RunDone(std::move(event));
  }
}

void LoopbackCore::RunFrame(Event event) {
  // A frame is encoded and decoded as over a socket: one that would not survive the wire does not
  // arrive here either.
  absl::StatusOr<FrameHeader> header = DecodeHeader(EncodeHeader(event.frame.header));
  const bool is_well_formed = header.ok() && header->payload_bytes == event.frame.payload.size();
  const Transport::FrameHandler* handler = nullptr;
  {
    MutexLock lock(&mu_);
    const auto it = endpoints_.find(event.endpoint);
    if (it == endpoints_.end() || it->second.is_closed) return;
    EndpointState& endpoint = it->second;
    if (!is_well_formed) {
      ++endpoint.stats.frames_malformed;
      return;
    }
    ++endpoint.stats.frames_received;
    endpoint.stats.bytes_received += kHeaderBytes + event.frame.payload.size();
    ++endpoint.running;  // Join waits for it, so the handler stays
    handler = &endpoint.handler;
  }
  event.frame.header = *header;
  (*handler)(event.from, std::move(event.frame));
  MutexLock lock(&mu_);
  --endpoints_.at(event.endpoint).running;
  changed_.SignalAll();
}

void LoopbackCore::RunGone(const Event& event) {
  const Transport::GoneHandler* gone = nullptr;
  {
    MutexLock lock(&mu_);
    const auto it = endpoints_.find(event.endpoint);
    if (it == endpoints_.end() || it->second.is_closed) return;
    it->second.ends.erase(event.from);
    ++it->second.running;
    gone = &it->second.gone;
  }
  (*gone)(event.from);
  MutexLock lock(&mu_);
  --endpoints_.at(event.endpoint).running;
  changed_.SignalAll();
}

void LoopbackCore::RunDone(Event event) {
  // No check whether the endpoint is closed: each SendDone runs exactly once, also after Close.
  event.done(std::move(event.status));
  event.done = nullptr;  // what it holds must be gone before Join returns
  MutexLock lock(&mu_);
  --endpoints_.at(event.endpoint).outstanding;
  changed_.SignalAll();
}

size_t LoopbackCore::Release() {
  MutexLock lock(&mu_);
  const size_t released = held_.size();
  for (Event& event : held_) queue_.push_back(std::move(event));
  held_.clear();
  changed_.SignalAll();
  return released;
}

}  // namespace bdn
