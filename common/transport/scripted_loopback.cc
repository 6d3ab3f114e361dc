#include "common/transport/scripted_loopback.h"

#include <algorithm>
#include <deque>
#include <map>
#include <random>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "common/base/mutex.h"
#include "common/base/status.h"

namespace bdn {
namespace {

using EndpointId = uint64_t;

constexpr char kScheme[] = "loopback://";

struct PendingSend {
  Frame frame;
  Transport::SendDone done;
};

// Two ends that know each other. Side 0 connected, side 1 listens (and is 0 until somebody does).
struct Link {
  EndpointId endpoint[2] = {0, 0};
  ConnectionId id[2] = {0, 0};
  bool is_open = true;
  std::deque<PendingSend> waiting;  // for a listener, from side 0
};

struct LinkEnd {
  std::shared_ptr<Link> link;  // shared by its two ends alone
  int side = 0;
};

enum class Fault { kNone, kDrop, kDuplicate, kHold, kCorrupt, kCut };

struct Rule {
  ScriptedLoopback::Match match;
  Fault fault;
  int times;
};

struct Event {
  EndpointId endpoint = 0;  // whose callback it is
  bool is_frame = false;
  // A frame:
  ConnectionId from = 0;
  Frame frame = {};
  // Or a completion:
  Transport::SendDone done = {};
  absl::Status status = {};
};

absl::Status CheckAddress(const std::string& address) {
  if (absl::StartsWith(address, kScheme) && address.size() > sizeof(kScheme) - 1) {
    return absl::OkStatus();
  }
  return InvalidArgument("address \"%s\": expected loopback://name", address);
}

Buffer FlipOneBit(const Buffer& payload, size_t at) {
  Buffer copy = Buffer::CopyOf(payload.span());
  copy.mutable_span()[at] ^= std::byte{1};
  return copy;
}

}  // namespace

// Everything, under one lock; callbacks run without it.
class ScriptedLoopback::Core {
 public:
  EndpointId AddEndpoint() ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(&mu_);
    endpoints_[++last_endpoint_];
    return last_endpoint_;
  }

  void RemoveEndpoint(EndpointId id) ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(&mu_);
    endpoints_.erase(id);
  }

  void Start(EndpointId id, Transport::FrameHandler handler) ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(&mu_);
    endpoints_.at(id).handler = std::move(handler);
  }

  absl::StatusOr<std::string> Listen(EndpointId id, const std::string& address);
  absl::StatusOr<ConnectionId> Connect(EndpointId id, const std::string& address);
  void Send(EndpointId id, ConnectionId to, Frame frame, Transport::SendDone done);
  void Close(EndpointId id);
  void Join(EndpointId id);

  TransportStats stats(EndpointId id) const ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(&mu_);
    return endpoints_.at(id).stats;
  }

  bool Step();
  bool StepFrame(const Match& match);
  bool WaitAndStep();
  void Interrupt();
  size_t num_pending() const;
  std::vector<FrameHeader> PendingFrames() const;

  void AddRule(Match match, Fault fault, int times);
  size_t Release();
  void ClearFaults();
  void Randomize(uint64_t seed, const RandomFaults& faults);

 private:
  struct EndpointState {
    Transport::FrameHandler handler;  // const after Start
    bool is_closed = false;
    int running = 0;      // callbacks on some thread now
    int outstanding = 0;  // Sends whose `done` has not returned
    ConnectionId last_connection = 0;
    std::map<ConnectionId, LinkEnd> ends;
    TransportStats stats;
  };

  // Puts a frame that one end of an open link sent, and its completion, into the queue.
  void Enqueue(Link* link, int side, PendingSend send) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void EnqueueDone(EndpointId owner, Transport::SendDone done, absl::Status status)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void EnqueueFrame(EndpointId to, ConnectionId from, Frame frame)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void BindListener(const std::shared_ptr<Link>& link, EndpointId listener)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  Fault ChooseFault(const FrameHeader& header) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  double RandomFraction() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return static_cast<double>(random_() >> 11) * 0x1p-53;
  }
  Event TakeNext() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // Run one event's callback on this thread.
  void Run(Event event) ABSL_LOCKS_EXCLUDED(mu_);
  void RunFrame(Event event) ABSL_LOCKS_EXCLUDED(mu_);
  void RunDone(Event event) ABSL_LOCKS_EXCLUDED(mu_);

  mutable Mutex mu_;
  CondVar changed_;  // an event came, a callback returned, or Interrupt
  EndpointId last_endpoint_ ABSL_GUARDED_BY(mu_) = 0;
  std::map<EndpointId, EndpointState> endpoints_ ABSL_GUARDED_BY(mu_);
  std::map<std::string, EndpointId> listeners_ ABSL_GUARDED_BY(mu_);
  std::multimap<std::string, std::shared_ptr<Link>> unbound_ ABSL_GUARDED_BY(mu_);
  std::deque<Event> queue_ ABSL_GUARDED_BY(mu_);
  std::deque<Event> held_ ABSL_GUARDED_BY(mu_);
  std::vector<Rule> rules_ ABSL_GUARDED_BY(mu_);
  std::mt19937_64 random_ ABSL_GUARDED_BY(mu_);
  RandomFaults random_faults_ ABSL_GUARDED_BY(mu_);
  bool is_interrupted_ ABSL_GUARDED_BY(mu_) = false;
};

absl::StatusOr<std::string> ScriptedLoopback::Core::Listen(EndpointId id,
                                                           const std::string& address) {
  BDN_RETURN_IF_ERROR(CheckAddress(address));
  MutexLock lock(&mu_);
  if (endpoints_.at(id).is_closed) return Unavailable("listen at %s: closed", address);
  if (!listeners_.emplace(address, id).second) {
    return AlreadyExists("listen at %s: the address is in use", address);
  }
  const auto [begin, end] = unbound_.equal_range(address);
  for (auto it = begin; it != end; ++it) BindListener(it->second, id);
  unbound_.erase(begin, end);
  return address;
}

absl::StatusOr<ConnectionId> ScriptedLoopback::Core::Connect(EndpointId id,
                                                             const std::string& address) {
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

void ScriptedLoopback::Core::BindListener(const std::shared_ptr<Link>& link, EndpointId listener) {
  EndpointState& endpoint = endpoints_.at(listener);
  link->endpoint[1] = listener;
  link->id[1] = ++endpoint.last_connection;
  endpoint.ends[link->id[1]] = {link, 1};
  while (!link->waiting.empty()) {
    PendingSend send = std::move(link->waiting.front());
    link->waiting.pop_front();
    if (link->is_open) {
      Enqueue(link.get(), 0, std::move(send));
    } else {
      EnqueueDone(link->endpoint[0], std::move(send.done), Unavailable("connection is gone"));
    }
  }
}

void ScriptedLoopback::Core::Send(EndpointId id, ConnectionId to, Frame frame,
                                  Transport::SendDone done) {
  MutexLock lock(&mu_);
  EndpointState& endpoint = endpoints_.at(id);
  ++endpoint.outstanding;
  const auto it = endpoint.ends.find(to);
  if (endpoint.is_closed) {
    EnqueueDone(id, std::move(done), Unavailable("send: the transport is closed"));
  } else if (it == endpoint.ends.end()) {
    EnqueueDone(id, std::move(done), NotFound("send: no connection %d", to));
  } else if (!it->second.link->is_open) {
    EnqueueDone(id, std::move(done), Unavailable("send: connection %d is gone", to));
  } else if (it->second.link->endpoint[1] == 0) {
    it->second.link->waiting.push_back({std::move(frame), std::move(done)});
  } else {
    Enqueue(it->second.link.get(), it->second.side, {std::move(frame), std::move(done)});
  }
}

void ScriptedLoopback::Core::Enqueue(Link* link, int side, PendingSend send) {
  const EndpointId sender = link->endpoint[side];
  const EndpointId receiver = link->endpoint[1 - side];
  const ConnectionId from = link->id[1 - side];
  const Fault fault = ChooseFault(send.frame.header);
  if (fault == Fault::kCut) {
    link->is_open = false;
    EnqueueDone(sender, std::move(send.done), Unavailable("send: the connection was cut"));
    return;
  }
  TransportStats& stats = endpoints_.at(sender).stats;
  ++stats.frames_sent;
  stats.bytes_sent += kHeaderBytes + send.frame.payload.size();
  if (fault == Fault::kHold) {
    held_.push_back(
        {.endpoint = receiver, .is_frame = true, .from = from, .frame = std::move(send.frame)});
  } else if (fault != Fault::kDrop) {
    if (fault == Fault::kCorrupt && !send.frame.payload.empty()) {
      send.frame.payload = FlipOneBit(send.frame.payload, random_() % send.frame.payload.size());
    }
    if (fault == Fault::kDuplicate) EnqueueFrame(receiver, from, send.frame);
    EnqueueFrame(receiver, from, std::move(send.frame));
  }
  EnqueueDone(sender, std::move(send.done), absl::OkStatus());
}

void ScriptedLoopback::Core::EnqueueFrame(EndpointId to, ConnectionId from, Frame frame) {
  queue_.push_back({.endpoint = to, .is_frame = true, .from = from, .frame = std::move(frame)});
  changed_.SignalAll();
}

void ScriptedLoopback::Core::EnqueueDone(EndpointId owner, Transport::SendDone done,
                                         absl::Status status) {
  if (!status.ok()) ++endpoints_.at(owner).stats.sends_failed;
  queue_.push_back({.endpoint = owner, .done = std::move(done), .status = std::move(status)});
  changed_.SignalAll();
}

Fault ScriptedLoopback::Core::ChooseFault(const FrameHeader& header) {
  for (Rule& rule : rules_) {
    if (rule.times > 0 && rule.match(header)) {
      if (rule.times != kAlways) --rule.times;
      return rule.fault;
    }
  }
  const RandomFaults& faults = random_faults_;
  if (faults.drop + faults.duplicate + faults.corrupt <= 0) return Fault::kNone;
  const double chance = RandomFraction();
  if (chance < faults.drop) return Fault::kDrop;
  if (chance < faults.drop + faults.duplicate) return Fault::kDuplicate;
  if (chance < faults.drop + faults.duplicate + faults.corrupt) return Fault::kCorrupt;
  return Fault::kNone;
}

void ScriptedLoopback::Core::Close(EndpointId id) {
  MutexLock lock(&mu_);
  EndpointState& endpoint = endpoints_.at(id);
  if (endpoint.is_closed) return;
  endpoint.is_closed = true;
  std::erase_if(listeners_, [id](const auto& listener) { return listener.second == id; });
  std::erase_if(unbound_, [id](const auto& unbound) { return unbound.second->endpoint[0] == id; });
  for (auto& [connection, end] : endpoint.ends) {
    end.link->is_open = false;
    for (PendingSend& send : end.link->waiting) {
      EnqueueDone(id, std::move(send.done), Unavailable("send: the transport was closed"));
    }
    end.link->waiting.clear();
  }
  for (Event& event : queue_) {
    if (event.is_frame || event.endpoint != id || !event.status.ok()) continue;
    event.status = Unavailable("send: the transport was closed");
    ++endpoint.stats.sends_failed;
  }
}

void ScriptedLoopback::Core::Join(EndpointId id) {
  while (true) {
    Event event;
    {
      MutexLock lock(&mu_);
      const EndpointState& endpoint = endpoints_.at(id);
      const auto is_mine = [id](const Event& e) { return !e.is_frame && e.endpoint == id; };
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

Event ScriptedLoopback::Core::TakeNext() {
  const size_t at = random_faults_.reorder ? random_() % queue_.size() : 0;
  Event event = std::move(queue_[at]);
  queue_.erase(queue_.begin() + static_cast<ptrdiff_t>(at));
  return event;
}

bool ScriptedLoopback::Core::Step() {
  Event event;
  {
    MutexLock lock(&mu_);
    if (queue_.empty()) return false;
    event = TakeNext();
  }
  Run(std::move(event));
  return true;
}

bool ScriptedLoopback::Core::StepFrame(const Match& match) {
  Event event;
  {
    MutexLock lock(&mu_);
    const auto it = std::find_if(queue_.begin(), queue_.end(), [&match](const Event& e) {
      return e.is_frame && match(e.frame.header);
    });
    if (it == queue_.end()) return false;
    event = std::move(*it);
    queue_.erase(it);
  }
  Run(std::move(event));
  return true;
}

bool ScriptedLoopback::Core::WaitAndStep() {
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

void ScriptedLoopback::Core::Interrupt() {
  MutexLock lock(&mu_);
  is_interrupted_ = true;
  changed_.SignalAll();
}

size_t ScriptedLoopback::Core::num_pending() const {
  MutexLock lock(&mu_);
  return queue_.size();
}

std::vector<FrameHeader> ScriptedLoopback::Core::PendingFrames() const {
  MutexLock lock(&mu_);
  std::vector<FrameHeader> headers;
  for (const Event& event : queue_) {
    if (event.is_frame) headers.push_back(event.frame.header);
  }
  return headers;
}

void ScriptedLoopback::Core::Run(Event event) {
  if (event.is_frame) {
    RunFrame(std::move(event));
  } else {
    RunDone(std::move(event));
  }
}

void ScriptedLoopback::Core::RunFrame(Event event) {
  // As over a socket: what would not survive the wire does not arrive here either.
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

void ScriptedLoopback::Core::RunDone(Event event) {
  event.done(std::move(event.status));
  event.done = nullptr;  // what it holds must be gone before Join returns
  MutexLock lock(&mu_);
  --endpoints_.at(event.endpoint).outstanding;
  changed_.SignalAll();
}

void ScriptedLoopback::Core::AddRule(Match match, Fault fault, int times) {
  MutexLock lock(&mu_);
  rules_.push_back({std::move(match), fault, times});
}

size_t ScriptedLoopback::Core::Release() {
  MutexLock lock(&mu_);
  const size_t released = held_.size();
  for (Event& event : held_) queue_.push_back(std::move(event));
  held_.clear();
  changed_.SignalAll();
  return released;
}

void ScriptedLoopback::Core::ClearFaults() {
  MutexLock lock(&mu_);
  rules_.clear();
  random_faults_ = {};
}

void ScriptedLoopback::Core::Randomize(uint64_t seed, const RandomFaults& faults) {
  MutexLock lock(&mu_);
  random_.seed(seed);
  random_faults_ = faults;
}

// One transport: an identity in the network, and nothing else.
class ScriptedLoopback::Endpoint final : public Transport {
 public:
  explicit Endpoint(Core* core) : core_(core), id_(core->AddEndpoint()) {}
  ~Endpoint() override {
    core_->Close(id_);
    core_->Join(id_);
    core_->RemoveEndpoint(id_);
  }

  void Start(FrameHandler handler) override { core_->Start(id_, std::move(handler)); }
  absl::StatusOr<std::string> Listen(const std::string& address) override {
    return core_->Listen(id_, address);
  }
  absl::StatusOr<ConnectionId> Connect(const std::string& address) override {
    return core_->Connect(id_, address);
  }
  void Send(ConnectionId to, Frame frame, SendDone done) override {
    core_->Send(id_, to, std::move(frame), std::move(done));
  }
  TransportStats stats() const override { return core_->stats(id_); }
  void Close() override { core_->Close(id_); }
  void Join() override { core_->Join(id_); }

 private:
  Core* const core_;
  const EndpointId id_;
};

ScriptedLoopback::ScriptedLoopback() : core_(std::make_unique<Core>()) {}
ScriptedLoopback::~ScriptedLoopback() = default;

std::unique_ptr<Transport> ScriptedLoopback::MakeTransport() {
  return std::make_unique<Endpoint>(core_.get());
}

bool ScriptedLoopback::Step() { return core_->Step(); }
bool ScriptedLoopback::StepFrame(const Match& match) { return core_->StepFrame(match); }
size_t ScriptedLoopback::DeliverAll(size_t most) {
  size_t steps = 0;
  while (steps < most && core_->Step()) ++steps;
  return steps;
}
size_t ScriptedLoopback::num_pending() const { return core_->num_pending(); }
std::vector<FrameHeader> ScriptedLoopback::PendingFrames() const { return core_->PendingFrames(); }
bool ScriptedLoopback::WaitAndStep() { return core_->WaitAndStep(); }
void ScriptedLoopback::Interrupt() { core_->Interrupt(); }

void ScriptedLoopback::Drop(Match match, int times) {
  core_->AddRule(std::move(match), Fault::kDrop, times);
}
void ScriptedLoopback::Duplicate(Match match, int times) {
  core_->AddRule(std::move(match), Fault::kDuplicate, times);
}
void ScriptedLoopback::Hold(Match match, int times) {
  core_->AddRule(std::move(match), Fault::kHold, times);
}
void ScriptedLoopback::CorruptPayload(Match match, int times) {
  core_->AddRule(std::move(match), Fault::kCorrupt, times);
}
void ScriptedLoopback::Cut(Match match, int times) {
  core_->AddRule(std::move(match), Fault::kCut, times);
}
size_t ScriptedLoopback::Release() { return core_->Release(); }
void ScriptedLoopback::ClearFaults() { core_->ClearFaults(); }
void ScriptedLoopback::Randomize(uint64_t seed, const RandomFaults& faults) {
  core_->Randomize(seed, faults);
}

}  // namespace bdn
