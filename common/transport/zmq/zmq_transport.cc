#include "common/transport/zmq/zmq_transport.h"

#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>
#include <zmq.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "common/base/log_limit.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/transport/transport_thread.h"
#include "common/transport/zmq/peer_table.h"
#include "common/transport/zmq/tcp_bytes.h"
#include "common/transport/zmq/zap_handler.h"
#include "common/transport/zmq/zmq_address.h"
#include "common/transport/zmq/zmq_socket.h"

namespace bdn {
namespace {

// Frames taken from one socket before the others get their turn.
constexpr int kReceiveBatch = 64;
// How often newcomers are looked at while there are any.
constexpr int kNewcomerPollMs = 10;
// Places among what is polled; the second is there where there are listeners.
enum PollItem : size_t { kWakeItem, kZapItem };
// A connector has one for each server.
constexpr int kMaxSockets = 16384;

struct Socket {
  void* handle = nullptr;
  ConnectionId connection = 0;  // of a connector, which has one
};

struct Listener {
  void* handle = nullptr;
  void* monitor = nullptr;
  LinkSecurity security = LinkSecurity::kEncrypted;
  std::string socket_file = {};  // over ipc: ours to remove
  PeerTable peers = {};
};

class ZmqTransport final : public Transport {
 public:
  ZmqTransport(const ZmqOptions& options, void* context, int wake_fd, KeyPair keys, ZapHandler zap)
      : options_(options),
        context_(context),
        wake_fd_(wake_fd),
        keys_(std::move(keys)),
        clock_(options.clock == nullptr ? &own_clock_ : options.clock),
        zap_(std::move(zap)),
        refusals_log_(clock_),
        poller_(StartTransportThread("bdn-zmq", [this] { RunPoller(); })) {}

  ~ZmqTransport() override {
    Close();
    Join();
    close(wake_fd_);
  }

  void Start(FrameHandler handler, GoneHandler gone) override {
    handler_ = std::move(handler);
    gone_ = std::move(gone);
  }
  absl::StatusOr<std::string> Listen(const std::string& address) override;
  absl::StatusOr<ConnectionId> Connect(const std::string& address,
                                       const PeerSecurity& peer) override;
  PublicKey public_key() const override { return keys_.public_key; }
  LinkSecurity security() const override;
  void Admit(Admission admission) override;
  PublicKey KeyOf(ConnectionId connection) const override;
  void Send(ConnectionId to, Frame frame, SendDone done) override;
  TransportStats stats() const override;
  void Close() override;
  void Join() override;

 private:
  struct Outgoing {
    ConnectionId to;
    Frame frame;
    SendDone done;
  };
  // What other threads ask of the poller.
  struct Requests {
    std::vector<Socket> connectors;
    std::vector<std::unique_ptr<Listener>> listeners;
    std::vector<Outgoing> frames;
    std::optional<Admission> admission;
    bool is_closed = false;
    bool is_joining = false;
  };
  // A payload that ZeroMQ reads.
  struct PayloadInFlight {
    ZmqTransport* transport;
    Buffer payload;
    SendDone done;
    std::shared_ptr<SendQueue> queue;  // null to a listener
    int error = 0;                     // 0 while none is known
  };
  struct Counters {
    // Statistics: they publish nothing else, so all accesses are relaxed.
    std::atomic<uint64_t> frames_sent{0};
    std::atomic<uint64_t> frames_received{0};
    std::atomic<uint64_t> bytes_sent{0};
    std::atomic<uint64_t> bytes_received{0};
    std::atomic<uint64_t> frames_malformed{0};
    std::atomic<uint64_t> sends_failed{0};
    std::atomic<uint64_t> connections_refused{0};
    std::atomic<uint64_t> connections_cut{0};
    std::atomic<uint64_t> connections_new{0};
    std::atomic<uint64_t> connections_open{0};
    std::atomic<uint64_t> bytes_queued{0};
  };

  static void Count(std::atomic<uint64_t>* counter, uint64_t by = 1) {
    counter->fetch_add(by, std::memory_order_relaxed);
  }
  static void Uncount(std::atomic<uint64_t>* counter, uint64_t by = 1) {
    counter->fetch_sub(by, std::memory_order_relaxed);
  }
  int64_t NowNanoseconds() const { return absl::ToUnixNanos(clock_->Now()); }

  // Hands a socket to the poller. False when this transport is closed: then the socket is, too.
  bool Adopt(Socket connector) ABSL_LOCKS_EXCLUDED(mu_);
  bool Adopt(std::unique_ptr<Listener> listener) ABSL_LOCKS_EXCLUDED(mu_);
  static void CloseListener(const Listener& listener);
  ConnectionId NewConnection() ABSL_LOCKS_EXCLUDED(mu_);
  bool WasConnection(ConnectionId id) ABSL_LOCKS_EXCLUDED(mu_);
  void WakePoller() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  Requests TakeRequests() ABSL_LOCKS_EXCLUDED(mu_);

  // On the poller thread:
  void RunPoller();
  void AddSockets(Requests* requests);
  void CloseSockets();
  void WaitForWork();
  void SendOne(Outgoing outgoing);
  void SendToPeer(Listener* listener, PeerTable::Peer* peer, Outgoing outgoing);
  void SendPayload(void* socket, Outgoing outgoing, std::shared_ptr<SendQueue> queue);
  absl::Status CheckQueue(PeerTable::Peer* peer, const Frame& frame);
  bool HasStalled(const SendQueue& queue) const;
  void ReceiveFromListener(Listener* listener);
  void ReceiveFromPeer(Listener* listener, const std::string& name);
  void ReceiveAsConnector(const Socket& socket);
  void Deliver(ConnectionId from, Frame frame);
  PeerTable::Peer* AddPeer(Listener* listener, const std::string& name, const FrameOrigin& origin);
  void FollowConnections(Listener* listener);
  void ForgetClosed(Listener* listener);
  void LimitNewcomers(Listener* listener);
  void Cut(PeerTable::Peer* peer, const char* why);
  void ApplyAdmission(Admission admission);
  void AnswerZap();

  // On whatever thread of ours or ZeroMQ's drops the last reference.
  static void OnPayloadFreed(void* data, void* hint);
  void Finish(SendDone done, absl::Status status);

  const ZmqOptions options_;
  void* const context_;
  const int wake_fd_;
  const KeyPair keys_;
  const SteadyClock own_clock_;
  const Clock* const clock_;
  FrameHandler handler_;  // const after Start
  GoneHandler gone_;      // as well
  Counters counters_;
  // Set by Close before the poller closes its sockets; what ZeroMQ frees afterwards ends in
  // Unavailable. Publishes nothing else.
  std::atomic<bool> is_closed_{false};

  mutable Mutex mu_;
  Requests requests_ ABSL_GUARDED_BY(mu_);
  bool is_woken_ ABSL_GUARDED_BY(mu_) = false;
  ConnectionId last_connection_ ABSL_GUARDED_BY(mu_) = 0;
  LinkSecurity security_ ABSL_GUARDED_BY(mu_) = LinkSecurity::kOpen;
  absl::flat_hash_map<ConnectionId, PublicKey> peer_keys_ ABSL_GUARDED_BY(mu_);

  // Owned by the poller thread.
  ZapHandler zap_;
  Admissions admissions_;
  LimitedLog refusals_log_;
  std::vector<Socket> connectors_;
  std::vector<std::unique_ptr<Listener>> listeners_;
  absl::flat_hash_map<ConnectionId, void*> connector_of_;
  absl::flat_hash_map<ConnectionId, Listener*> listener_of_;
  std::vector<zmq_pollitem_t> poll_items_;

  Mutex join_mu_;
  bool is_joined_ ABSL_GUARDED_BY(join_mu_) = false;
  std::thread poller_ ABSL_GUARDED_BY(join_mu_);  // last: it uses everything above
};

// ---- Calls of other threads

absl::StatusOr<std::string> ZmqTransport::Listen(const std::string& address) {
  BDN_ASSIGN_OR_RETURN(const ZmqAddress parsed, ParseZmqAddress(address));
  if (parsed.is_ipc) BDN_RETURN_IF_ERROR(RemoveStaleSocketFile(parsed.path));
  auto listener = std::make_unique<Listener>();
  listener->security = options_.security.value_or(parsed.is_local ? LinkSecurity::kAuthenticated
                                                                  : LinkSecurity::kEncrypted);
  BDN_ASSIGN_OR_RETURN(listener->handle,
                       OpenListener(context_, options_, parsed, listener->security, keys_));
  absl::StatusOr<void*> monitor = OpenMonitor(context_, listener->handle);
  if (!monitor.ok()) {
    zmq_close(listener->handle);
    return monitor.status();
  }
  listener->monitor = *monitor;
  if (zmq_bind(listener->handle, address.c_str()) != 0) {
    const int error = errno;
    CloseListener(*listener);
    if (error == EADDRINUSE) return AlreadyExists("%s: the address is in use", address);
    return InvalidArgument("listen at %s: %s", address, zmq_strerror(error));
  }
  char endpoint[256] = {};
  size_t size = sizeof(endpoint);
  zmq_getsockopt(listener->handle, ZMQ_LAST_ENDPOINT, endpoint, &size);
  listener->socket_file = parsed.path;
  const LinkSecurity security = listener->security;
  if (!Adopt(std::move(listener))) return Unavailable("listen at %s: closed", address);
  MutexLock lock(&mu_);
  security_ = security;
  return std::string(endpoint);
}

absl::StatusOr<ConnectionId> ZmqTransport::Connect(const std::string& address,
                                                   const PeerSecurity& peer) {
  BDN_ASSIGN_OR_RETURN(const ZmqAddress parsed, ParseZmqAddress(address));
  BDN_ASSIGN_OR_RETURN(void* const socket, OpenConnector(context_, options_, parsed, peer, keys_));
  if (zmq_connect(socket, address.c_str()) != 0) {
    const int error = errno;
    zmq_close(socket);
    return InvalidArgument("connect to %s: %s", address, zmq_strerror(error));
  }
  const ConnectionId connection = NewConnection();
  if (!Adopt(Socket{.handle = socket, .connection = connection})) {
    return Unavailable("connect to %s: closed", address);
  }
  return connection;
}

bool ZmqTransport::Adopt(Socket connector) {
  // A socket may change threads with a full fence between: the lock's.
  {
    MutexLock lock(&mu_);
    if (!requests_.is_closed) {
      requests_.connectors.push_back(connector);
      WakePoller();
      return true;
    }
  }
  zmq_close(connector.handle);
  return false;
}

bool ZmqTransport::Adopt(std::unique_ptr<Listener> listener) {
  {
    MutexLock lock(&mu_);
    if (!requests_.is_closed) {
      requests_.listeners.push_back(std::move(listener));
      WakePoller();
      return true;
    }
  }
  CloseListener(*listener);
  return false;
}

void ZmqTransport::CloseListener(const Listener& listener) {
  // While it is still bound: nobody else can have taken the path.
  if (!listener.socket_file.empty()) unlink(listener.socket_file.c_str());
  zmq_socket_monitor(listener.handle, nullptr, 0);
  zmq_close(listener.monitor);
  zmq_close(listener.handle);
}

ConnectionId ZmqTransport::NewConnection() {
  MutexLock lock(&mu_);
  return ++last_connection_;
}

bool ZmqTransport::WasConnection(ConnectionId id) {
  MutexLock lock(&mu_);
  return id != 0 && id <= last_connection_;
}

LinkSecurity ZmqTransport::security() const {
  MutexLock lock(&mu_);
  return security_;
}

void ZmqTransport::Admit(Admission admission) {
  MutexLock lock(&mu_);
  requests_.admission = std::move(admission);
  WakePoller();
}

PublicKey ZmqTransport::KeyOf(ConnectionId connection) const {
  MutexLock lock(&mu_);
  const auto found = peer_keys_.find(connection);
  return found == peer_keys_.end() ? PublicKey() : found->second;
}

void ZmqTransport::Send(ConnectionId to, Frame frame, SendDone done) {
  MutexLock lock(&mu_);
  requests_.frames.push_back({to, std::move(frame), std::move(done)});
  WakePoller();
}

TransportStats ZmqTransport::stats() const {
  const auto read = [](const std::atomic<uint64_t>& counter) {
    return counter.load(std::memory_order_relaxed);
  };
  return {.frames_sent = read(counters_.frames_sent),
          .frames_received = read(counters_.frames_received),
          .bytes_sent = read(counters_.bytes_sent),
          .bytes_received = read(counters_.bytes_received),
          .frames_malformed = read(counters_.frames_malformed),
          .sends_failed = read(counters_.sends_failed),
          .connections_refused = read(counters_.connections_refused),
          .connections_cut = read(counters_.connections_cut),
          .connections_new = read(counters_.connections_new),
          .connections_open = read(counters_.connections_open),
          .bytes_queued = read(counters_.bytes_queued)};
}

void ZmqTransport::Close() {
  MutexLock lock(&mu_);
  requests_.is_closed = true;
  is_closed_.store(true, std::memory_order_relaxed);
  WakePoller();
}

void ZmqTransport::Join() {
  MutexLock join_lock(&join_mu_);
  if (is_joined_) return;
  {
    MutexLock lock(&mu_);
    requests_.is_joining = true;
    WakePoller();
  }
  poller_.join();
  // Waits for the lingering frames and the I/O threads, and so for the last SendDone.
  while (zmq_ctx_term(context_) != 0 && errno == EINTR) {
  }
  is_joined_ = true;
}

void ZmqTransport::WakePoller() {
  if (is_woken_) return;
  is_woken_ = true;
  const uint64_t one = 1;
  // Cannot fail: the counter is far from full. A short write does not exist on an eventfd.
  [[maybe_unused]] const ssize_t written = write(wake_fd_, &one, sizeof(one));
}

ZmqTransport::Requests ZmqTransport::TakeRequests() {
  MutexLock lock(&mu_);
  Requests taken;
  std::swap(taken.connectors, requests_.connectors);
  std::swap(taken.listeners, requests_.listeners);
  std::swap(taken.frames, requests_.frames);
  std::swap(taken.admission, requests_.admission);
  taken.is_closed = requests_.is_closed;
  taken.is_joining = requests_.is_joining;
  is_woken_ = false;
  return taken;
}

// ---- The poller

void ZmqTransport::RunPoller() {
  bool sockets_closed = false;
  while (true) {
    Requests requests = TakeRequests();
    AddSockets(&requests);
    if (requests.admission.has_value() && !requests.is_closed) {
      ApplyAdmission(*std::move(requests.admission));
    }
    for (Outgoing& outgoing : requests.frames) SendOne(std::move(outgoing));
    if (requests.is_closed && !sockets_closed) {
      CloseSockets();
      sockets_closed = true;
    }
    if (requests.is_joining) return;
    WaitForWork();
  }
}

void ZmqTransport::AddSockets(Requests* requests) {
  for (const Socket& connector : requests->connectors) {
    connector_of_[connector.connection] = connector.handle;
    connectors_.push_back(connector);
  }
  for (auto& listener : requests->listeners) listeners_.push_back(std::move(listener));
}

void ZmqTransport::CloseSockets() {
  connector_of_.clear();
  listener_of_.clear();
  for (const Socket& connector : connectors_) zmq_close(connector.handle);
  connectors_.clear();
  for (const auto& listener : listeners_) CloseListener(*listener);
  listeners_.clear();
  zap_.Close();
}

void ZmqTransport::WaitForWork() {
  const auto add = [this](void* socket) {
    poll_items_.push_back({.socket = socket, .fd = 0, .events = ZMQ_POLLIN, .revents = 0});
  };
  poll_items_.clear();
  poll_items_.push_back({.socket = nullptr, .fd = wake_fd_, .events = ZMQ_POLLIN, .revents = 0});
  int timeout_ms = -1;
  if (!listeners_.empty()) add(zap_.socket());
  const size_t first_listener = poll_items_.size();
  for (const auto& listener : listeners_) {
    add(listener->monitor);
    add(listener->handle);
    if (!listener->peers.newcomers().empty()) timeout_ms = kNewcomerPollMs;
  }
  const size_t first_connector = poll_items_.size();
  for (const Socket& connector : connectors_) add(connector.handle);
  const int ready = zmq_poll(poll_items_.data(), static_cast<int>(poll_items_.size()), timeout_ms);
  {
    MutexLock lock(&mu_);
    is_woken_ = true;  // callbacks may send: what they ask is taken before the next wait
  }
  if (ready > 0 && poll_items_[kWakeItem].revents != 0) {
    uint64_t count;
    [[maybe_unused]] const ssize_t got = read(wake_fd_, &count, sizeof(count));
  }
  if (!listeners_.empty() && poll_items_[kZapItem].revents != 0) AnswerZap();
  size_t newcomers = 0;
  for (size_t i = 0; i < listeners_.size(); ++i) {
    const size_t at = first_listener + 2 * i;
    if (poll_items_[at].revents != 0) FollowConnections(listeners_[i].get());
    // What has ended is forgotten once nothing of it is left to read.
    if (poll_items_[at].revents != 0 || poll_items_[at + 1].revents != 0) {
      ReceiveFromListener(listeners_[i].get());
    }
    LimitNewcomers(listeners_[i].get());
    newcomers += listeners_[i]->peers.newcomers().size();
  }
  counters_.connections_new.store(newcomers, std::memory_order_relaxed);
  for (size_t i = 0; i < connectors_.size(); ++i) {
    if (poll_items_[first_connector + i].revents != 0) ReceiveAsConnector(connectors_[i]);
  }
}

// ---- Sending

void ZmqTransport::SendOne(Outgoing outgoing) {
  const size_t payload_bytes = outgoing.frame.payload.size();
  if (payload_bytes > options_.max_payload_bytes) {
    return Finish(
        std::move(outgoing.done),
        InvalidArgument("%s: payload of %d bytes, at most %d", Describe(outgoing.frame.header),
                        payload_bytes, options_.max_payload_bytes));
  }
  if (const auto found = listener_of_.find(outgoing.to); found != listener_of_.end()) {
    PeerTable::Peer* const peer = found->second->peers.Find(outgoing.to);
    if (peer != nullptr && !peer->is_cut) {
      return SendToPeer(found->second, peer, std::move(outgoing));
    }
  }
  const auto connector = connector_of_.find(outgoing.to);
  if (connector == connector_of_.end()) {
    return Finish(std::move(outgoing.done),
                  WasConnection(outgoing.to)
                      ? Unavailable("send: connection %d is gone", outgoing.to)
                      : NotFound("send: no connection %d", outgoing.to));
  }
  if (absl::Status sent = WriteHeader(connector->second, nullptr, outgoing.frame); !sent.ok()) {
    return Finish(std::move(outgoing.done), std::move(sent));
  }
  SendPayload(connector->second, std::move(outgoing), nullptr);
}

void ZmqTransport::SendToPeer(Listener* listener, PeerTable::Peer* peer, Outgoing outgoing) {
  absl::Status status = CheckQueue(peer, outgoing.frame);
  if (status.ok()) {
    status = WriteHeader(listener->handle, &peer->name, outgoing.frame);
    if (absl::IsUnavailable(status)) {
      // A peer that has gone does not come back under this name.
      listener->peers.Close(peer);
    }
  }
  if (!status.ok()) {
    if (absl::IsResourceExhausted(status) && HasStalled(*peer->queue)) {
      Cut(peer, "it takes nothing of what is sent to it");
    }
    return Finish(std::move(outgoing.done), std::move(status));
  }
  const std::shared_ptr<SendQueue> queue = peer->queue;
  SendPayload(listener->handle, std::move(outgoing), queue);
}

bool ZmqTransport::HasStalled(const SendQueue& queue) const {
  if (options_.silence_timeout == absl::ZeroDuration() || queue.bytes.load() == 0) return false;
  return NowNanoseconds() - queue.moved_at_ns.load() >
         absl::ToInt64Nanoseconds(options_.silence_timeout);
}

absl::Status ZmqTransport::CheckQueue(PeerTable::Peer* peer, const Frame& frame) {
  const uint64_t queued = peer->queue->bytes.load();
  if (queued == 0 || queued + frame.payload.size() <= options_.max_bytes_queued) {
    return absl::OkStatus();
  }
  return ResourceExhausted("%s: %d bytes wait for connection %d, at most %d",
                           Describe(frame.header), queued, peer->id, options_.max_bytes_queued);
}

void ZmqTransport::SendPayload(void* socket, Outgoing outgoing, std::shared_ptr<SendQueue> queue) {
  const size_t bytes = outgoing.frame.payload.size();
  Count(&counters_.frames_sent);
  Count(&counters_.bytes_sent, kHeaderBytes + bytes);
  if (bytes == 0) return Finish(std::move(outgoing.done), absl::OkStatus());
  if (queue != nullptr) {
    if (queue->bytes.fetch_add(bytes) == 0) queue->moved_at_ns = NowNanoseconds();
    Count(&counters_.bytes_queued, bytes);
  }
  auto* in_flight = new PayloadInFlight{this, std::move(outgoing.frame.payload),
                                        std::move(outgoing.done), std::move(queue)};
  WritePayload(socket, in_flight->payload.span(), OnPayloadFreed, in_flight, &in_flight->error);
}

void ZmqTransport::OnPayloadFreed(void* /*data*/, void* hint) {
  const std::unique_ptr<PayloadInFlight> in_flight(static_cast<PayloadInFlight*>(hint));
  ZmqTransport* const transport = in_flight->transport;
  if (in_flight->queue != nullptr) {
    in_flight->queue->moved_at_ns = transport->NowNanoseconds();
    in_flight->queue->bytes -= in_flight->payload.size();
    Uncount(&transport->counters_.bytes_queued, in_flight->payload.size());
  }
  absl::Status status;
  if (in_flight->error != 0) {
    status = Unavailable("send: %s", zmq_strerror(in_flight->error));
  } else if (transport->is_closed_.load(std::memory_order_relaxed)) {
    status = Unavailable("send: the transport was closed");
  }
  in_flight->payload = Buffer();  // released before it is said to be
  transport->Finish(std::move(in_flight->done), std::move(status));
}

void ZmqTransport::Finish(SendDone done, absl::Status status) {
  if (!status.ok()) Count(&counters_.sends_failed);
  done(std::move(status));
}

// ---- Receiving

void ZmqTransport::Deliver(ConnectionId from, Frame frame) {
  Count(&counters_.frames_received);
  Count(&counters_.bytes_received, kHeaderBytes + frame.payload.size());
  handler_(from, std::move(frame));
}

void ZmqTransport::ReceiveAsConnector(const Socket& socket) {
  for (int i = 0; i < kReceiveBatch; ++i) {
    Frame frame;
    const ReadResult result = ReadFrame(socket.handle, &frame, nullptr);
    if (result == ReadResult::kNothing) return;
    if (result == ReadResult::kFrame) {
      Deliver(socket.connection, std::move(frame));
    } else {
      Count(&counters_.frames_malformed);
    }
  }
}

void ZmqTransport::ReceiveFromListener(Listener* listener) {
  std::string name;
  for (int i = 0; i < kReceiveBatch; ++i) {
    if (!ReadPeerName(listener->handle, &name)) return ForgetClosed(listener);
    ReceiveFromPeer(listener, name);
  }
}

void ZmqTransport::ReceiveFromPeer(Listener* listener, const std::string& name) {
  PeerTable::Peer* peer = listener->peers.Find(name);
  Frame frame;
  FrameOrigin origin;
  const ReadResult result =
      ReadFrame(listener->handle, &frame, peer == nullptr ? &origin : nullptr);
  if (peer == nullptr) peer = AddPeer(listener, name, origin);
  if (result != ReadResult::kFrame) Count(&counters_.frames_malformed);
  if (peer->is_cut) return;
  if (result == ReadResult::kTooManyParts) Cut(peer, "it sent a message that can be no frame");
  if (result == ReadResult::kFrame) Deliver(peer->id, std::move(frame));
}

PeerTable::Peer* ZmqTransport::AddPeer(Listener* listener, const std::string& name,
                                       const FrameOrigin& origin) {
  // Of its connection ZeroMQ told before its first frame came, and of what had the descriptor
  // before it.
  FollowConnections(listener);
  const ConnectionId id = NewConnection();
  PeerTable::Peer* const peer = listener->peers.Add(id, name, origin.fd, origin.key);
  listener_of_[id] = listener;
  Count(&counters_.connections_open);
  {
    MutexLock lock(&mu_);
    peer_keys_[id] = origin.key;
  }
  // It was admitted, and has left the roster since.
  if (listener->security != LinkSecurity::kOpen && !admissions_.Admits(origin.key)) {
    Cut(peer, "its key has left the job");
  }
  return peer;
}

// ---- Who is connected

void ZmqTransport::FollowConnections(Listener* listener) {
  while (const auto event = ReadMonitor(listener->monitor)) {
    switch (event->kind) {
      case MonitorEvent::Kind::kAccepted:
        listener->peers.OnAccepted(event->value, clock_->Now());
        break;
      case MonitorEvent::Kind::kClosed:
        if (!listener->peers.OnClosed(event->value)) Count(&counters_.connections_refused);
        break;
      case MonitorEvent::Kind::kAcceptFailed:
        refusals_log_.Warning("a connection could not be accepted: %s",
                              std::strerror(event->value));
        break;
    }
  }
}

void ZmqTransport::ForgetClosed(Listener* listener) {
  for (const PeerTable::Peer& peer : listener->peers.TakeClosed()) {
    listener_of_.erase(peer.id);
    Uncount(&counters_.connections_open);
    {
      MutexLock lock(&mu_);
      peer_keys_.erase(peer.id);
    }
    if (gone_) gone_(peer.id);
  }
}

// Until a connection's handshake is over ZeroMQ reads what it sends, whoever it is.
void ZmqTransport::LimitNewcomers(Listener* listener) {
  PeerTable& peers = listener->peers;
  peers.ForgetNewcomersBefore(clock_->Now() - 2 * options_.handshake_timeout);
  const auto cut_newcomer = [&](int fd) {
    Count(&counters_.connections_cut);
    shutdown(fd, SHUT_RDWR);
    peers.ForgetNewcomer(fd);
  };
  while (peers.newcomers().size() > static_cast<size_t>(options_.max_newcomers)) {
    cut_newcomer(peers.newcomers().begin()->second.fd);
  }
  if (listener->security == LinkSecurity::kOpen) return;  // whose frames are as good as any
  uint64_t sum = 0;
  std::vector<std::pair<uint64_t, int>> sent;
  for (const auto& [order, newcomer] : peers.newcomers()) {
    sent.emplace_back(TcpBytesReceived(newcomer.fd), newcomer.fd);
    sum += sent.back().first;
  }
  if (sum <= options_.max_newcomer_bytes) return;
  std::sort(sent.begin(), sent.end());
  for (; sum > options_.max_newcomer_bytes; sent.pop_back()) {
    sum -= sent.back().first;
    cut_newcomer(sent.back().second);
  }
  refusals_log_.Warning("cut connections that had sent over %d bytes together, and no frame",
                        options_.max_newcomer_bytes);
}

// ZeroMQ closes what nobody can read from or write to; where the descriptor has just been given to
// another connection, that one is replaced.
void ZmqTransport::Cut(PeerTable::Peer* peer, const char* why) {
  if (peer->is_cut) return;
  peer->is_cut = true;
  Count(&counters_.connections_cut);
  if (!peer->is_closed) shutdown(peer->fd, SHUT_RDWR);
  refusals_log_.Warning("cut connection %d: %s", peer->id, why);
}

void ZmqTransport::ApplyAdmission(Admission admission) {
  admissions_.Set(std::move(admission));
  AnswerZap();  // who came before it was known
  for (const auto& listener : listeners_) {
    if (listener->security == LinkSecurity::kOpen) continue;
    for (PeerTable::Peer* peer : listener->peers.peers()) {
      if (!admissions_.Admits(peer->key)) Cut(peer, "its key has left the job");
    }
  }
}

void ZmqTransport::AnswerZap() {
  std::string address;
  const int denied = zap_.AnswerAll(admissions_, &address);
  if (denied == 0) return;
  refusals_log_.Warning("refused %d connections, the last from %s: not of this job", denied,
                        Printable(address));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Transport>> MakeZmqTransport(const ZmqOptions& options) {
  if (options.silence_timeout < absl::ZeroDuration() || options.silence_timeout > absl::Hours(1) ||
      options.handshake_timeout < absl::Milliseconds(1) ||
      options.handshake_timeout > absl::Hours(1)) {
    return InvalidArgument(
        "zmq options: silence_timeout %s (0 to 1h), handshake_timeout %s (1ms to 1h)",
        absl::FormatDuration(options.silence_timeout),
        absl::FormatDuration(options.handshake_timeout));
  }
  if (options.max_frames_queued < 1 || options.max_newcomers < 1) {
    return InvalidArgument("zmq options: max_frames_queued %d, max_newcomers %d (at least 1)",
                           options.max_frames_queued, options.max_newcomers);
  }
  if (options.io_threads < 1 || options.linger < absl::ZeroDuration() ||
      options.linger > absl::Minutes(1) || options.max_payload_bytes > kMaxPayloadBytes) {
    return InvalidArgument(
        "zmq options: io_threads %d (at least 1), linger %s (0 to 1 minute), max_payload_bytes %d",
        options.io_threads, absl::FormatDuration(options.linger), options.max_payload_bytes);
  }
  BDN_RETURN_IF_ERROR(CheckCurve());
  BDN_ASSIGN_OR_RETURN(KeyPair keys, MakeKeyPair());
  const int wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (wake_fd < 0) return ResourceExhausted("eventfd: %s", std::strerror(errno));
  void* const context = zmq_ctx_new();
  if (context == nullptr) {
    const int error = errno;
    close(wake_fd);
    return ResourceExhausted("zmq_ctx_new: %s", zmq_strerror(error));
  }
  zmq_ctx_set(context, ZMQ_IO_THREADS, options.io_threads);
  zmq_ctx_set(context, ZMQ_MAX_SOCKETS, kMaxSockets);
  absl::StatusOr<ZapHandler> zap = ZapHandler::Bind(context);
  if (!zap.ok()) {
    close(wake_fd);
    zmq_ctx_term(context);
    return zap.status();
  }
  return std::make_unique<ZmqTransport>(options, context, wake_fd, std::move(keys),
                                        *std::move(zap));
}

}  // namespace bdn
