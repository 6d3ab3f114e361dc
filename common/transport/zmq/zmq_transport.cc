#include "common/transport/zmq/zmq_transport.h"

#include <sys/eventfd.h>
#include <unistd.h>
#include <zmq.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/transport/transport_thread.h"
#include "common/transport/zmq/zmq_address.h"

namespace bdn {
namespace {

// Frames taken from one socket before the others get their turn.
constexpr int kReceiveBatch = 64;
constexpr int kMaxReconnectMs = 2000;
constexpr int kKeepaliveIdleSeconds = 30;
constexpr int kKeepaliveIntervalSeconds = 10;
constexpr int kKeepaliveProbes = 3;

// One part of a message, on its way in.
class Part {
 public:
  Part() { zmq_msg_init(&message_); }
  ~Part() { zmq_msg_close(&message_); }
  Part(const Part&) = delete;
  Part& operator=(const Part&) = delete;

  // False when there is none (or the socket is gone).
  bool Receive(void* socket) {
    int rc;
    do {
      rc = zmq_msg_recv(&message_, socket, ZMQ_DONTWAIT);
    } while (rc < 0 && errno == EINTR);
    return rc >= 0;
  }
  bool has_more() const { return zmq_msg_more(&message_) != 0; }
  MutableByteSpan bytes() {
    return {static_cast<std::byte*>(zmq_msg_data(&message_)), zmq_msg_size(&message_)};
  }

 private:
  zmq_msg_t message_;
};

// The socket's bytes as a buffer, which owns the part from here on.
Buffer ToBuffer(std::unique_ptr<Part> part) {
  const MutableByteSpan bytes = part->bytes();
  return Buffer::Wrap(bytes, [owned = part.release()] { delete owned; });
}

struct Socket {
  void* handle = nullptr;
  // Connectors: their one connection. Listeners: 0, and their peers by ZeroMQ's name for them.
  ConnectionId connection = 0;
  absl::flat_hash_map<std::string, ConnectionId> peers = {};
  std::string socket_file = {};  // listeners over ipc: ours to remove
};

// Where a connection's frames go.
struct Route {
  void* socket = nullptr;
  std::string peer = {};  // listeners: ZeroMQ's name; empty for connectors
};

class ZmqTransport final : public Transport {
 public:
  ZmqTransport(const ZmqOptions& options, void* context, int wake_fd)
      : options_(options),
        context_(context),
        wake_fd_(wake_fd),
        poller_(StartTransportThread("bdn-zmq", [this] { RunPoller(); })) {}

  ~ZmqTransport() override {
    Close();
    Join();
    close(wake_fd_);
  }

  void Start(FrameHandler handler, GoneHandler) override { handler_ = std::move(handler); }
  absl::StatusOr<std::string> Listen(const std::string& address) override;
  absl::StatusOr<ConnectionId> Connect(const std::string& address, const PeerSecurity&) override;
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
    std::vector<Socket> sockets;
    std::vector<Outgoing> frames;
    bool is_closed = false;
    bool is_joining = false;
  };
  // A payload that ZeroMQ reads.
  struct PayloadInFlight {
    ZmqTransport* transport;
    Buffer payload;
    SendDone done;
    absl::Status failure;  // OK while none is known
  };
  struct Counters {
    // Statistics: they publish nothing else, so all accesses are relaxed.
    std::atomic<uint64_t> frames_sent{0};
    std::atomic<uint64_t> frames_received{0};
    std::atomic<uint64_t> bytes_sent{0};
    std::atomic<uint64_t> bytes_received{0};
    std::atomic<uint64_t> frames_malformed{0};
    std::atomic<uint64_t> sends_failed{0};
  };

  static void Count(std::atomic<uint64_t>* counter, uint64_t by = 1) {
    counter->fetch_add(by, std::memory_order_relaxed);
  }

  absl::StatusOr<void*> OpenSocket(int type, const ZmqAddress& address);
  // Hands a socket to the poller. False when this transport is closed: then the socket is too.
  bool Adopt(Socket socket) ABSL_LOCKS_EXCLUDED(mu_);
  ConnectionId NewConnection() ABSL_LOCKS_EXCLUDED(mu_);
  bool WasConnection(ConnectionId id) ABSL_LOCKS_EXCLUDED(mu_);
  void WakePoller() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  Requests TakeRequests() ABSL_LOCKS_EXCLUDED(mu_);

  // On the poller thread:
  void RunPoller();
  void AddSocket(Socket socket);
  void CloseSockets();
  void WaitForWork();
  void SendOne(Outgoing outgoing);
  absl::Status SendHeader(const Route& route, const Frame& frame);
  void SendPayload(void* socket, Outgoing outgoing);
  void ReceiveSome(Socket* socket);
  std::optional<Frame> ReadFrame(Socket* socket, bool* had_one, std::string* peer);
  ConnectionId PeerConnection(Socket* socket, const std::string& peer);

  // On whatever thread of ours or ZeroMQ's drops the last reference.
  static void OnPayloadFreed(void* data, void* hint);
  void Finish(SendDone done, absl::Status status);

  const ZmqOptions options_;
  void* const context_;
  const int wake_fd_;
  FrameHandler handler_;  // const after Start
  Counters counters_;
  // Set by Close before the poller closes its sockets; what ZeroMQ frees afterwards ends in
  // Unavailable. Publishes nothing else.
  std::atomic<bool> is_closed_{false};

  Mutex mu_;
  Requests requests_ ABSL_GUARDED_BY(mu_);
  bool is_woken_ ABSL_GUARDED_BY(mu_) = false;
  ConnectionId last_connection_ ABSL_GUARDED_BY(mu_) = 0;

  // Owned by the poller thread.
  std::vector<std::unique_ptr<Socket>> sockets_;
  absl::flat_hash_map<ConnectionId, Route> routes_;
  std::vector<zmq_pollitem_t> poll_items_;

  Mutex join_mu_;
  bool is_joined_ ABSL_GUARDED_BY(join_mu_) = false;
  std::thread poller_ ABSL_GUARDED_BY(join_mu_);  // last: it uses everything above
};

void SetOption(void* socket, int option, int value) {
  zmq_setsockopt(socket, option, &value, sizeof(value));
}

void CloseSocket(const Socket& socket) {
  // While it is still bound: nobody else can have taken the path.
  if (!socket.socket_file.empty()) unlink(socket.socket_file.c_str());
  zmq_close(socket.handle);
}

absl::StatusOr<void*> ZmqTransport::OpenSocket(int type, const ZmqAddress& address) {
  void* socket = zmq_socket(context_, type);
  if (socket == nullptr) return ResourceExhausted("zmq_socket: %s", zmq_strerror(errno));
  // Nothing is dropped for being too much: the layers above bound what is in flight.
  SetOption(socket, ZMQ_SNDHWM, 0);
  SetOption(socket, ZMQ_RCVHWM, 0);
  SetOption(socket, ZMQ_LINGER, static_cast<int>(absl::ToInt64Milliseconds(options_.linger)));
  const int64_t max_bytes =
      static_cast<int64_t>(std::max(options_.max_payload_bytes, kHeaderBytes));
  zmq_setsockopt(socket, ZMQ_MAXMSGSIZE, &max_bytes, sizeof(max_bytes));
  SetOption(socket, ZMQ_RECONNECT_IVL_MAX, kMaxReconnectMs);
  SetOption(socket, ZMQ_TCP_KEEPALIVE, 1);
  SetOption(socket, ZMQ_TCP_KEEPALIVE_IDLE, kKeepaliveIdleSeconds);
  SetOption(socket, ZMQ_TCP_KEEPALIVE_INTVL, kKeepaliveIntervalSeconds);
  SetOption(socket, ZMQ_TCP_KEEPALIVE_CNT, kKeepaliveProbes);
  if (address.is_ipv6) SetOption(socket, ZMQ_IPV6, 1);
  if (type == ZMQ_ROUTER) SetOption(socket, ZMQ_ROUTER_MANDATORY, 1);
  return socket;
}

absl::StatusOr<std::string> ZmqTransport::Listen(const std::string& address) {
  BDN_ASSIGN_OR_RETURN(const ZmqAddress parsed, ParseZmqAddress(address));
  if (parsed.is_ipc) BDN_RETURN_IF_ERROR(RemoveStaleSocketFile(parsed.path));
  BDN_ASSIGN_OR_RETURN(void* const socket, OpenSocket(ZMQ_ROUTER, parsed));
  if (zmq_bind(socket, address.c_str()) != 0) {
    const int error = errno;
    zmq_close(socket);
    if (error == EADDRINUSE) return AlreadyExists("%s: the address is in use", address);
    return InvalidArgument("listen at %s: %s", address, zmq_strerror(error));
  }
  char endpoint[256] = {};
  size_t size = sizeof(endpoint);
  zmq_getsockopt(socket, ZMQ_LAST_ENDPOINT, endpoint, &size);
  if (!Adopt({.handle = socket, .socket_file = parsed.path})) {
    return Unavailable("listen at %s: closed", address);
  }
  return std::string(endpoint);
}

absl::StatusOr<ConnectionId> ZmqTransport::Connect(const std::string& address, const PeerSecurity&) {
  BDN_ASSIGN_OR_RETURN(const ZmqAddress parsed, ParseZmqAddress(address));
  BDN_ASSIGN_OR_RETURN(void* const socket, OpenSocket(ZMQ_DEALER, parsed));
  if (zmq_connect(socket, address.c_str()) != 0) {
    const int error = errno;
    zmq_close(socket);
    return InvalidArgument("connect to %s: %s", address, zmq_strerror(error));
  }
  const ConnectionId connection = NewConnection();
  if (!Adopt({.handle = socket, .connection = connection})) {
    return Unavailable("connect to %s: closed", address);
  }
  return connection;
}

bool ZmqTransport::Adopt(Socket socket) {
  // A socket may change threads with a full fence between: the lock's.
  {
    MutexLock lock(&mu_);
    if (!requests_.is_closed) {
      requests_.sockets.push_back(std::move(socket));
      WakePoller();
      return true;
    }
  }
  CloseSocket(socket);
  return false;
}

ConnectionId ZmqTransport::NewConnection() {
  MutexLock lock(&mu_);
  return ++last_connection_;
}

bool ZmqTransport::WasConnection(ConnectionId id) {
  MutexLock lock(&mu_);
  return id != 0 && id <= last_connection_;
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
          .sends_failed = read(counters_.sends_failed)};
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
  std::swap(taken.sockets, requests_.sockets);
  std::swap(taken.frames, requests_.frames);
  taken.is_closed = requests_.is_closed;
  taken.is_joining = requests_.is_joining;
  is_woken_ = false;
  return taken;
}

void ZmqTransport::RunPoller() {
  bool sockets_closed = false;
  while (true) {
    Requests requests = TakeRequests();
    for (Socket& socket : requests.sockets) AddSocket(std::move(socket));
    for (Outgoing& outgoing : requests.frames) SendOne(std::move(outgoing));
    if (requests.is_closed && !sockets_closed) {
      CloseSockets();
      sockets_closed = true;
    }
    if (requests.is_joining) return;
    WaitForWork();
  }
}

void ZmqTransport::AddSocket(Socket socket) {
  if (socket.connection != 0) routes_[socket.connection] = {.socket = socket.handle};
  sockets_.push_back(std::make_unique<Socket>(std::move(socket)));
}

void ZmqTransport::CloseSockets() {
  routes_.clear();
  for (const auto& socket : sockets_) CloseSocket(*socket);
  sockets_.clear();
}

void ZmqTransport::WaitForWork() {
  poll_items_.clear();
  poll_items_.push_back({.socket = nullptr, .fd = wake_fd_, .events = ZMQ_POLLIN, .revents = 0});
  for (const auto& socket : sockets_) {
    poll_items_.push_back({.socket = socket->handle, .fd = 0, .events = ZMQ_POLLIN, .revents = 0});
  }
  const int ready = zmq_poll(poll_items_.data(), static_cast<int>(poll_items_.size()), -1);
  {
    MutexLock lock(&mu_);
    is_woken_ = true;  // callbacks may send: what they ask is taken before the next wait
  }
  if (ready <= 0) return;
  if (poll_items_[0].revents != 0) {
    uint64_t count;
    [[maybe_unused]] const ssize_t got = read(wake_fd_, &count, sizeof(count));
  }
  for (size_t i = 0; i < sockets_.size(); ++i) {
    if (poll_items_[i + 1].revents != 0) ReceiveSome(sockets_[i].get());
  }
}

void ZmqTransport::SendOne(Outgoing outgoing) {
  const size_t payload_bytes = outgoing.frame.payload.size();
  if (payload_bytes > options_.max_payload_bytes) {
    return Finish(
        std::move(outgoing.done),
        InvalidArgument("%s: payload of %d bytes, at most %d", Describe(outgoing.frame.header),
                        payload_bytes, options_.max_payload_bytes));
  }
  const auto route = routes_.find(outgoing.to);
  if (route == routes_.end()) {
    return Finish(std::move(outgoing.done),
                  WasConnection(outgoing.to)
                      ? Unavailable("send: connection %d is gone", outgoing.to)
                      : NotFound("send: no connection %d", outgoing.to));
  }
  absl::Status sent = SendHeader(route->second, outgoing.frame);
  if (!sent.ok()) {
    // A peer that has gone does not come back under this name.
    if (!route->second.peer.empty()) routes_.erase(route);
    return Finish(std::move(outgoing.done), std::move(sent));
  }
  Count(&counters_.frames_sent);
  Count(&counters_.bytes_sent, kHeaderBytes + payload_bytes);
  if (payload_bytes == 0) return Finish(std::move(outgoing.done), absl::OkStatus());
  SendPayload(route->second.socket, std::move(outgoing));
}

absl::Status ZmqTransport::SendHeader(const Route& route, const Frame& frame) {
  const auto header = EncodeHeader(frame.header);
  const int more = frame.payload.empty() ? 0 : ZMQ_SNDMORE;
  const bool sent =
      (route.peer.empty() || zmq_send(route.socket, route.peer.data(), route.peer.size(),
                                      ZMQ_DONTWAIT | ZMQ_SNDMORE) >= 0) &&
      zmq_send(route.socket, header.data(), header.size(), ZMQ_DONTWAIT | more) >= 0;
  if (sent) return absl::OkStatus();
  return Unavailable("%s: %s", Describe(frame.header), zmq_strerror(errno));
}

void ZmqTransport::SendPayload(void* socket, Outgoing outgoing) {
  auto* in_flight = new PayloadInFlight{this, std::move(outgoing.frame.payload),
                                        std::move(outgoing.done), absl::OkStatus()};
  const Buffer& payload = in_flight->payload;
  zmq_msg_t message;
  zmq_msg_init_data(&message, payload.data(), payload.size(), OnPayloadFreed, in_flight);
  if (zmq_msg_send(&message, socket, ZMQ_DONTWAIT) < 0) {
    in_flight->failure =
        Unavailable("%s: %s", Describe(outgoing.frame.header), zmq_strerror(errno));
    zmq_msg_close(&message);
  }
}

void ZmqTransport::OnPayloadFreed(void* /*data*/, void* hint) {
  const std::unique_ptr<PayloadInFlight> in_flight(static_cast<PayloadInFlight*>(hint));
  ZmqTransport* const transport = in_flight->transport;
  absl::Status status = std::move(in_flight->failure);
  if (status.ok() && transport->is_closed_.load(std::memory_order_relaxed)) {
    status = Unavailable("send: the transport was closed");
  }
  in_flight->payload = Buffer();  // released before it is said to be
  transport->Finish(std::move(in_flight->done), std::move(status));
}

void ZmqTransport::Finish(SendDone done, absl::Status status) {
  if (!status.ok()) Count(&counters_.sends_failed);
  done(std::move(status));
}

void ZmqTransport::ReceiveSome(Socket* socket) {
  for (int i = 0; i < kReceiveBatch; ++i) {
    bool had_one = false;
    std::string peer;
    std::optional<Frame> frame = ReadFrame(socket, &had_one, &peer);
    if (!had_one) return;
    if (!frame.has_value()) {
      Count(&counters_.frames_malformed);
      continue;
    }
    Count(&counters_.frames_received);
    Count(&counters_.bytes_received, kHeaderBytes + frame->payload.size());
    const ConnectionId from =
        socket->connection != 0 ? socket->connection : PeerConnection(socket, peer);
    handler_(from, std::move(*frame));
  }
}

// Reads one whole message, whatever it is; nothing comes back for one that is no frame.
std::optional<Frame> ZmqTransport::ReadFrame(Socket* socket, bool* had_one, std::string* peer) {
  Part first;
  *had_one = first.Receive(socket->handle);
  if (!*had_one) return std::nullopt;

  Part* header_part = &first;
  Part second;
  if (socket->connection == 0) {  // a listener's messages begin with the peer's name
    const ByteSpan name = first.bytes();
    peer->assign(reinterpret_cast<const char*>(name.data()), name.size());
    if (!first.has_more() || !second.Receive(socket->handle)) return std::nullopt;
    header_part = &second;
  }
  absl::StatusOr<FrameHeader> header = DecodeHeader(header_part->bytes());
  Buffer payload;
  bool has_more = header_part->has_more();
  const bool has_payload = has_more;
  if (has_more) {
    auto part = std::make_unique<Part>();
    if (!part->Receive(socket->handle)) return std::nullopt;
    has_more = part->has_more();
    payload = ToBuffer(std::move(part));
  }
  bool is_well_formed = header.ok() && !has_more && has_payload == !payload.empty() &&
                        payload.size() == header->payload_bytes;
  while (has_more) {  // parts that no frame has
    Part extra;
    if (!extra.Receive(socket->handle)) break;
    has_more = extra.has_more();
  }
  if (!is_well_formed) return std::nullopt;
  return Frame{*header, std::move(payload)};
}

ConnectionId ZmqTransport::PeerConnection(Socket* socket, const std::string& peer) {
  ConnectionId& connection = socket->peers[peer];
  if (connection == 0) {
    connection = NewConnection();
    routes_[connection] = {.socket = socket->handle, .peer = peer};
  }
  return connection;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Transport>> MakeZmqTransport(const ZmqOptions& options) {
  if (options.io_threads < 1 || options.linger < absl::ZeroDuration() ||
      options.linger > absl::Minutes(1) || options.max_payload_bytes > kMaxPayloadBytes) {
    return InvalidArgument(
        "zmq options: io_threads %d (at least 1), linger %s (0 to 1 minute), max_payload_bytes %d",
        options.io_threads, absl::FormatDuration(options.linger), options.max_payload_bytes);
  }
  const int wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (wake_fd < 0) return ResourceExhausted("eventfd: %s", std::strerror(errno));
  void* const context = zmq_ctx_new();
  if (context == nullptr) {
    const int error = errno;
    close(wake_fd);
    return ResourceExhausted("zmq_ctx_new: %s", zmq_strerror(error));
  }
  zmq_ctx_set(context, ZMQ_IO_THREADS, options.io_threads);
  return std::make_unique<ZmqTransport>(options, context, wake_fd);
}

}  // namespace bdn
