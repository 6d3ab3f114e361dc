#include "common/transport/zmq/zmq_transport.h"

#include <sys/eventfd.h>
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
#include "common/base/thread.h"
#include "common/transport/transport_counters.h"
#include "common/transport/zmq/poller_mailbox.h"
#include "common/transport/zmq/tcp_bytes.h"
#include "common/transport/zmq/zap_handler.h"
#include "common/transport/zmq/zmq_address.h"
#include "common/transport/zmq/zmq_listener.h"
#include "common/transport/zmq/zmq_socket.h"

namespace bdn {
namespace {

// The longest poll while there are newcomers, or messages that are watched.
constexpr int kNewcomerPollMs = 10;
// The longest poll while there are connections, whose messages may not end.
constexpr int kMessagePollMs = 100;
// The positions of the first polled items; the second is there where there are listeners.
enum PollItem : size_t { kWakeItem, kZapItem };
// Each connection to a server takes a socket of its own.
constexpr int kMaxSockets = 16384;

class ZmqTransport final : public Transport {
 public:
  ZmqTransport(const ZmqOptions& options, void* context, int wake_fd, KeyPair keys, ZapHandler zap)
      : options_(options),
        context_(context),
        keys_(std::move(keys)),
        clock_(options.clock == nullptr ? &own_clock_ : options.clock),
        mailbox_(wake_fd),
        zap_(std::move(zap)),
        refusals_log_(clock_),
        owner_{context,
               &options_,
               &keys_,
               clock_,
               &admissions_,
               &counters_,
               &refusals_log_,
               [this](ZmqListener* listener, const FrameOrigin& origin) {
                 return OnNew(listener, origin);
               },
               [this](ConnectionId from, Frame frame) { Deliver(from, std::move(frame)); },
               [this](ConnectionId connection) { OnGone(connection); }},
        poller_(StartThread("bdn-zmq", [this] { RunPoller(); })) {}

  ~ZmqTransport() override {
    Close();
    Join();
  }

  void Start(FrameHandler handler, GoneHandler gone) override {
    handler_ = std::move(handler);
    gone_ = std::move(gone);
  }
  absl::StatusOr<std::vector<Endpoint>> Listen(const std::string& address) override;
  absl::StatusOr<ConnectionId> Connect(const Peer& peer) override;
  void Disconnect(ConnectionId connection) override { mailbox_.End(connection); }
  PublicKey public_key() const override { return keys_.public_key; }
  LinkSecurity security() const override;
  bool needs_checksums() const override { return true; }
  void Admit(Admission admission) override {
    admissions_.Set(admission);
    mailbox_.SayAdmissionsChanged();
  }
  PublicKey KeyOf(ConnectionId connection) const override;
  ConnectionFacts FactsOf(ConnectionId connection) const override;
  void Send(ConnectionId to, Frame frame, SendDone done) override;
  std::shared_ptr<MemoryDomain> memory() override { return HostMemory(); }
  TransportStats stats() const override { return counters_.Read(); }
  void Close() override;
  void Join() override;

 private:
  using Connector = PollerMailbox::Connector;
  using Outgoing = PollerMailbox::Outgoing;
  using Requests = PollerMailbox::Requests;

  // A payload while ZeroMQ reads it.
  struct PayloadInFlight {
    ZmqTransport* transport;
    Buffer payload;
    SendDone done;
    std::shared_ptr<SendQueue> queue;  // null for a connector
    int error = 0;                     // 0 while none is known
  };

  int64_t NowNanoseconds() const { return absl::ToUnixNanos(clock_->Now()); }

  ConnectionId NewConnection() ABSL_LOCKS_EXCLUDED(mu_);
  bool WasConnection(ConnectionId id) ABSL_LOCKS_EXCLUDED(mu_);

  // On the poller thread:
  void RunPoller();
  void AddSockets(Requests* requests);
  void CloseConnector(ConnectionId connection);
  void CloseSockets();
  void WaitForWork();
  void SendOne(Outgoing outgoing);
  void SendPayload(void* socket, Outgoing outgoing, std::shared_ptr<SendQueue> queue);
  void ReceiveAsConnector(Connector* connector);
  void NoteDescriptor(int fd, Connector* connector) ABSL_LOCKS_EXCLUDED(mu_);
  void Deliver(ConnectionId from, Frame frame);
  ConnectionId OnNew(ZmqListener* listener, const FrameOrigin& origin);
  void OnGone(ConnectionId connection);
  void ApplyAdmissions();
  void AnswerZap();

  // Run on the thread, ours or ZeroMQ's, that drops the last reference.
  static void OnPayloadFreed(void* data, void* hint);
  void Finish(SendDone done, absl::Status status);

  const ZmqOptions options_;
  void* const context_;
  const KeyPair keys_;
  const SteadyClock own_clock_;
  const Clock* const clock_;
  FrameHandler handler_;  // not changed after Start
  GoneHandler gone_;      // not changed after Start
  TransportCounters counters_;
  // Set by Close before the poller closes its sockets, so that frames that ZeroMQ frees afterwards
  // end in Unavailable. Publishes nothing else.
  std::atomic<bool> is_closed_{false};

  mutable Mutex mu_;
  ConnectionId last_connection_ ABSL_GUARDED_BY(mu_) = 0;
  LinkSecurity security_ ABSL_GUARDED_BY(mu_) = LinkSecurity::kOpen;
  absl::flat_hash_map<ConnectionId, PublicKey> peer_keys_ ABSL_GUARDED_BY(mu_);
  // Descriptors of connectors. ZeroMQ may have closed one, so they are only asked, never changed.
  absl::flat_hash_map<ConnectionId, int> descriptors_ ABSL_GUARDED_BY(mu_);

  PollerMailbox mailbox_;
  Admissions admissions_;

  // Owned by the poller thread.
  ZapHandler zap_;
  LimitedLog refusals_log_;
  std::vector<Connector> connectors_;
  const ZmqListener::Owner owner_;
  std::vector<std::unique_ptr<ZmqListener>> listeners_;
  absl::flat_hash_map<ConnectionId, void*> connector_of_;
  absl::flat_hash_map<ConnectionId, ZmqListener*> listener_of_;
  std::vector<zmq_pollitem_t> poll_items_;

  Mutex join_mu_;
  bool is_joined_ ABSL_GUARDED_BY(join_mu_) = false;
  std::thread poller_ ABSL_GUARDED_BY(join_mu_);  // last: it uses everything above
};

// ---- Calls of other threads

absl::StatusOr<std::vector<Endpoint>> ZmqTransport::Listen(const std::string& address) {
  BDN_ASSIGN_OR_RETURN(std::unique_ptr<ZmqListener> listener, ZmqListener::Open(&owner_, address));
  std::string endpoint = listener->endpoint();
  const LinkSecurity security = listener->security();
  if (!mailbox_.Add(&listener)) return Unavailable("listen at %s: closed", address);
  MutexLock lock(&mu_);
  security_ = security;
  return std::vector<Endpoint>{EndpointOf(endpoint, security)};
}

absl::StatusOr<ConnectionId> ZmqTransport::Connect(const Peer& peer) {
  const auto found = std::find_if(
      peer.endpoints.begin(), peer.endpoints.end(),
      [](const Endpoint& each) { return each.scheme == "tcp" || each.scheme == "ipc"; });
  if (found == peer.endpoints.end()) {
    return Unimplemented("ZeroMQ: the peer offers %s, and neither tcp nor ipc",
                         SchemesOf(peer.endpoints));
  }
  const std::string address = UrlOf(*found);
  BDN_ASSIGN_OR_RETURN(const ZmqAddress parsed, ParseZmqAddress(address));
  BDN_ASSIGN_OR_RETURN(
      void* const socket,
      OpenConnector(context_, options_, parsed, {found->security, peer.key, peer.secret}, keys_));
  if (zmq_connect(socket, address.c_str()) != 0) {
    const int error = errno;
    zmq_close(socket);
    return InvalidArgument("connect to %s: %s", address, zmq_strerror(error));
  }
  const ConnectionId connection = NewConnection();
  if (!mailbox_.Add(Connector{.socket = socket, .connection = connection})) {
    zmq_close(socket);
    return Unavailable("connect to %s: closed", address);
  }
  return connection;
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

PublicKey ZmqTransport::KeyOf(ConnectionId connection) const {
  MutexLock lock(&mu_);
  const auto found = peer_keys_.find(connection);
  return found == peer_keys_.end() ? PublicKey() : found->second;
}

ConnectionFacts ZmqTransport::FactsOf(ConnectionId connection) const {
  MutexLock lock(&mu_);
  const auto found = descriptors_.find(connection);
  return found == descriptors_.end() ? ConnectionFacts() : TcpFacts(found->second);
}

void ZmqTransport::Send(ConnectionId to, Frame frame, SendDone done) {
  mailbox_.Add(Outgoing{to, std::move(frame), std::move(done)});
}

void ZmqTransport::Close() {
  is_closed_.store(true, std::memory_order_relaxed);
  mailbox_.Close();
}

void ZmqTransport::Join() {
  MutexLock join_lock(&join_mu_);
  if (is_joined_) return;
  mailbox_.SayJoining();
  poller_.join();
  // Waits for the frames that linger and for ZeroMQ's threads, and so for the last SendDone.
  while (zmq_ctx_term(context_) != 0 && errno == EINTR) {
  }
  is_joined_ = true;
}

// ---- The poller

void ZmqTransport::RunPoller() {
  bool sockets_closed = false;
  while (true) {
    Requests requests = mailbox_.Take();
    // Sockets first: the frames may be for connections that were made just before. Disconnect and
    // Close come after the frames that were handed over before them.
    AddSockets(&requests);
    if (requests.have_admissions_changed && !requests.is_closed) ApplyAdmissions();
    for (Outgoing& outgoing : requests.frames) SendOne(std::move(outgoing));
    for (const ConnectionId connection : requests.ended) CloseConnector(connection);
    if (requests.is_closed && !sockets_closed) {
      CloseSockets();
      sockets_closed = true;
    }
    if (requests.is_joining) return;
    WaitForWork();
  }
}

void ZmqTransport::AddSockets(Requests* requests) {
  for (const Connector& connector : requests->connectors) {
    connector_of_[connector.connection] = connector.socket;
    connectors_.push_back(connector);
  }
  for (auto& listener : requests->listeners) listeners_.push_back(std::move(listener));
}

void ZmqTransport::CloseConnector(ConnectionId connection) {
  if (connector_of_.erase(connection) == 0) return;
  const auto closed =
      std::find_if(connectors_.begin(), connectors_.end(),
                   [connection](const Connector& c) { return c.connection == connection; });
  DropUnsent(closed->socket);
  zmq_close(closed->socket);
  connectors_.erase(closed);
  MutexLock lock(&mu_);
  descriptors_.erase(connection);
}

void ZmqTransport::CloseSockets() {
  connector_of_.clear();
  listener_of_.clear();
  for (const Connector& connector : connectors_) zmq_close(connector.socket);
  connectors_.clear();
  listeners_.clear();
  // After the listeners, which ask it.
  zap_.Close();
}

void ZmqTransport::WaitForWork() {
  const auto add = [this](void* socket) {
    poll_items_.push_back({.socket = socket, .fd = 0, .events = ZMQ_POLLIN, .revents = 0});
  };
  // Made anew each time, as sockets come and go; the cost is small beside the poll.
  poll_items_.clear();
  poll_items_.push_back(
      {.socket = nullptr, .fd = mailbox_.wake_fd(), .events = ZMQ_POLLIN, .revents = 0});
  int timeout_ms = -1;
  // Only listeners are asked for admission; without one nobody writes to this socket.
  if (!listeners_.empty()) add(zap_.socket());
  const size_t first_listener = poll_items_.size();
  for (const auto& listener : listeners_) {
    add(listener->monitor());
    add(listener->socket());
    if (listener->has_ended()) {
      timeout_ms = 0;
    } else if (timeout_ms != 0 &&
               (listener->has_newcomers() || listener->has_messages_to_watch())) {
      timeout_ms = kNewcomerPollMs;
    } else if (listener->has_messages_to_limit() && timeout_ms < 0) {
      timeout_ms = kMessagePollMs;
    }
  }
  const size_t first_connector = poll_items_.size();
  for (const Connector& connector : connectors_) add(connector.socket);
  zmq_poll(poll_items_.data(), static_cast<int>(poll_items_.size()), timeout_ms);
  // At once after the poll: from here on other threads need not wake this one.
  mailbox_.SetAwake(poll_items_[kWakeItem].revents != 0);
  // Handshakes wait for this answer, so it comes before the frames.
  if (!listeners_.empty() && poll_items_[kZapItem].revents != 0) AnswerZap();
  size_t newcomers = 0;
  for (size_t i = 0; i < listeners_.size(); ++i) {
    const size_t at = first_listener + 2 * i;
    listeners_[i]->OnReady(poll_items_[at].revents != 0, poll_items_[at + 1].revents != 0);
    listeners_[i]->LimitNewcomers();
    newcomers += listeners_[i]->num_newcomers();
  }
  counters_.connections_new.Set(newcomers);
  // After the reading, so that messages that could be read are not weighed as unended.
  for (const auto& listener : listeners_) listener->LimitMessages();
  for (size_t i = 0; i < connectors_.size(); ++i) {
    if (poll_items_[first_connector + i].revents != 0) ReceiveAsConnector(&connectors_[i]);
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
    absl::StatusOr<std::shared_ptr<SendQueue>> queue =
        found->second->BeginFrame(outgoing.to, outgoing.frame);
    if (!queue.ok()) return Finish(std::move(outgoing.done), queue.status());
    return SendPayload(found->second->socket(), std::move(outgoing), *std::move(queue));
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

void ZmqTransport::SendPayload(void* socket, Outgoing outgoing, std::shared_ptr<SendQueue> queue) {
  const size_t bytes = outgoing.frame.payload.size();
  counters_.frames_sent.Add();
  counters_.bytes_sent.Add(kHeaderBytes + bytes);
  if (bytes == 0) return Finish(std::move(outgoing.done), absl::OkStatus());
  if (queue != nullptr) {
    // A queue that was empty has moved until now: its time begins with this payload.
    if (queue->bytes.fetch_add(bytes) == 0) queue->moved_at_ns = NowNanoseconds();
    counters_.bytes_queued.Add(bytes);
  }
  // ZeroMQ keeps no more for us than this pointer; OnPayloadFreed deletes it.
  auto* in_flight = new PayloadInFlight{this, std::move(outgoing.frame.payload),
                                        std::move(outgoing.done), std::move(queue)};
  WritePayload(socket, in_flight->payload.span(), OnPayloadFreed, in_flight, &in_flight->error);
}

void ZmqTransport::OnPayloadFreed(void* /*data*/, void* hint) {
  const std::unique_ptr<PayloadInFlight> in_flight(static_cast<PayloadInFlight*>(hint));
  ZmqTransport* const transport = in_flight->transport;
  if (in_flight->queue != nullptr) {
    // The time before the bytes: as long as the queue counts bytes its time is right.
    in_flight->queue->moved_at_ns = transport->NowNanoseconds();
    in_flight->queue->bytes -= in_flight->payload.size();
    transport->counters_.bytes_queued.Remove(in_flight->payload.size());
  }
  absl::Status status;
  if (in_flight->error != 0) {
    status = Unavailable("send: %s", zmq_strerror(in_flight->error));
  } else if (transport->is_closed_.load(std::memory_order_relaxed)) {
    status = Unavailable("send: the transport was closed");
  }
  in_flight->payload = Buffer();  // released before its SendDone runs
  transport->Finish(std::move(in_flight->done), std::move(status));
}

void ZmqTransport::Finish(SendDone done, absl::Status status) {
  if (!status.ok()) counters_.sends_failed.Add();
  done(std::move(status));
}

// ---- Receiving

void ZmqTransport::Deliver(ConnectionId from, Frame frame) {
  counters_.frames_received.Add();
  counters_.bytes_received.Add(kHeaderBytes + frame.payload.size());
  handler_(from, std::move(frame));
}

void ZmqTransport::NoteDescriptor(int fd, Connector* connector) {
  if (std::exchange(connector->fd, fd) == fd) return;
  MutexLock lock(&mu_);
  descriptors_[connector->connection] = fd;
}

void ZmqTransport::ReceiveAsConnector(Connector* connector) {
  for (int i = 0; i < kReceiveBatch; ++i) {
    Frame frame;
    FrameOrigin origin;
    const bool is_first = i == 0;
    const ReadResult result = ReadFrame(connector->socket, &frame, is_first ? &origin : nullptr);
    if (result == ReadResult::kNothing) return;
    if (is_first) NoteDescriptor(origin.fd, connector);
    if (result == ReadResult::kFrame) {
      Deliver(connector->connection, std::move(frame));
    } else {
      counters_.frames_malformed.Add();
    }
  }
}

// ---- Who is connected

ConnectionId ZmqTransport::OnNew(ZmqListener* listener, const FrameOrigin& origin) {
  const ConnectionId connection = NewConnection();
  listener_of_[connection] = listener;
  MutexLock lock(&mu_);
  peer_keys_[connection] = origin.key;
  descriptors_[connection] = origin.fd;
  return connection;
}

void ZmqTransport::OnGone(ConnectionId connection) {
  listener_of_.erase(connection);
  {
    MutexLock lock(&mu_);
    peer_keys_.erase(connection);
    descriptors_.erase(connection);
  }
  if (gone_) gone_(connection);
}

void ZmqTransport::ApplyAdmissions() {
  AnswerZap();  // questions that came before anybody was admitted wait there
  for (const auto& listener : listeners_) listener->ApplyAdmissions();
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
