#include "common/transport/shm/shm_transport.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "common/base/log_limit.h"
#include "common/base/memory_reserve.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/base/thread.h"
#include "common/transport/shm/fd_poller.h"
#include "common/transport/shm/shm_arena.h"
#include "common/transport/shm/shm_channel.h"
#include "common/transport/shm/shm_connection.h"
#include "common/transport/shm/shm_copies.h"
#include "common/transport/shm/shm_listener.h"
#include "common/transport/shm/shm_socket.h"
#include "common/transport/transport_counters.h"

namespace bdn {
namespace {

// The time between two attempts to connect, or to find memory for payloads that must be copied, and
// between two looks whether a peer still reads what it was sent. None of them gives a sign.
constexpr absl::Duration kRetryDelay = absl::Milliseconds(50);
// Frames taken from one connection before the others get their turn.
constexpr int kReceiveBatch = 64;
// Packets read from one socket at a time, so that a peer that sends many cannot keep the poller.
constexpr int kPacketBatch = 1024;

// The reason for which a connection ends.
enum class EndReason { kPeerEnded, kBrokeRules, kNoMemory, kNotAdmitted };

// Completes "cut connection 3 over shared memory: ".
const char* TextOf(EndReason reason) {
  switch (reason) {
    case EndReason::kPeerEnded:
      return "its peer has ended it";
    case EndReason::kBrokeRules:
      return "it does not keep to the rules";
    case EndReason::kNoMemory:
      return "this process has no memory left to map what it sends";
    case EndReason::kNotAdmitted:
      return "its key has left the job";
  }
  return "";
}

// A connection with what the poller knows of it besides its queue and channel.
struct ShmPeer : ShmConnection {
  using ShmConnection::ShmConnection;

  std::string name;    // of the listener that it connects to
  std::string secret;  // to be shown to that listener
  PublicKey key;       // the CURVE key of a listener's peer

  // The poller's:
  FileDescriptor greeting;  // a connector's socket during its handshake
  std::shared_ptr<SharedMemory> mine;
  absl::Time retry_at = absl::InfiniteFuture();
  bool peer_closes = false;  // no frames come but those already published
  bool has_socket = true;    // until its socket has ended
};
absl::StatusOr<std::string> NameOf(const Peer& peer) {
  const Endpoint* const endpoint = FindEndpoint(peer.endpoints, kShmScheme);
  if (endpoint == nullptr) {
    return Unimplemented("shared memory: the peer offers %s, and not shm",
                         SchemesOf(peer.endpoints));
  }
  return ParseShmAddress(UrlOf(*endpoint));
}

using ConnectionPtr = std::shared_ptr<ShmPeer>;

class ShmTransportImpl final : public ShmTransport {
 public:
  ShmTransportImpl(const ShmOptions& options, FileDescriptor epoll, FileDescriptor wake)
      : options_(options),
        clock_(options.clock == nullptr ? &own_clock_ : options.clock),
        wake_(std::move(wake)),
        arena_(std::make_shared<ShmArena>()),
        lent_(ArenaOrHeap(arena_)),
        copies_(arena_),
        log_(clock_),
        fds_(std::move(epoll)),
        listener_({&options_, clock_, &fds_, &counters_, &log_,
                   [this](ShmListener::Guest guest) { OnGuest(std::move(guest)); }}),
        poller_(StartThread("bdn-shm", [this] { RunPoller(); })) {}
  ~ShmTransportImpl() override {
    Close();
    Join();
  }

  void Start(FrameHandler handler, GoneHandler gone) override {
    handler_ = std::move(handler);
    gone_ = std::move(gone);
  }
  absl::StatusOr<std::vector<Endpoint>> Listen(const std::string& address) override;
  absl::StatusOr<ConnectionId> Connect(const Peer& peer) override;
  absl::StatusOr<ConnectionId> ConnectNow(const Peer& peer) override;
  bool WasUp(ConnectionId connection) const override;
  void Disconnect(ConnectionId connection) override;
  PublicKey public_key() const override { return options_.key; }
  LinkSecurity security() const override { return options_.security; }
  bool needs_checksums() const override { return false; }
  void Admit(Admission admission) override;
  PublicKey KeyOf(ConnectionId connection) const override;
  ConnectionFacts FactsOf(ConnectionId) const override { return {}; }
  void Send(ConnectionId to, Frame frame, SendDone done) override;
  std::shared_ptr<MemoryDomain> memory() override { return lent_; }
  TransportStats stats() const override { return counters_.Read(); }
  size_t bytes_copied() const override { return copies_.bytes_copied(); }
  void Close() override;
  void Join() override;

 private:
  using Done = ShmConnection::Done;
  // The requests of other threads to the poller.
  struct Requests {
    std::vector<ShmListeningSocket> listeners;
    std::vector<ConnectionPtr> connectors;
    std::vector<ConnectionId> ended;
    std::vector<std::pair<ConnectionPtr, std::shared_ptr<ShmChannel>>> broken;
    std::vector<Done> done;
    std::optional<Admission> admission;
    bool is_closed = false;
    bool is_joining = false;
  };

  absl::StatusOr<ConnectionId> AddConnector(const std::string& name, const Peer& peer,
                                            FileDescriptor socket);
  ConnectionPtr Find(ConnectionId id) const ABSL_LOCKS_EXCLUDED(mu_);
  void Finish(SendDone done, absl::Status status) ABSL_LOCKS_EXCLUDED(mu_);
  void Wake() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  ShmConnection::Owner ConnectionOwner() { return {&options_, &copies_, &counters_}; }

  // On the poller thread:
  void RunPoller();
  void Apply(Requests* requests);
  void Sleep(bool may_wait);
  int TimeoutMs() const;

  bool Service(const ConnectionPtr& connection);
  // Reads the packets that have come. Returns false where it had to end the connection.
  bool ReadPackets(const ConnectionPtr& connection);
  void Tell(std::vector<Done>* done);
  // Ends a connection. A connector's comes back later, a listener's does not.
  void End(const ConnectionPtr& connection, EndReason reason);
  // Ends a connection for good.
  void Drop(const ConnectionPtr& connection, bool broke_rules = false);
  void CloseChannel(std::shared_ptr<ShmChannel> channel, bool broke_rules);

  void Greet(const ConnectionPtr& connection);
  void OnGreeted(const ConnectionPtr& connection);
  void RetryLater(ShmPeer* connection);
  void Up(const ConnectionPtr& connection, std::shared_ptr<ShmChannel> channel);

  void OnGuest(ShmListener::Guest guest);
  void ApplyAdmission(Admission admission);
  void CloseAll();

  const ShmOptions options_;
  const SteadyClock own_clock_;
  const Clock* const clock_;
  const FileDescriptor wake_;
  const std::shared_ptr<ShmArena> arena_;
  const std::shared_ptr<MemoryDomain> lent_;
  ShmCopies copies_;
  FrameHandler handler_;  // not changed after Start
  GoneHandler gone_;      // not changed after Start
  TransportCounters counters_;

  mutable Mutex mu_;
  ConnectionId last_connection_ ABSL_GUARDED_BY(mu_) = 0;
  absl::flat_hash_map<ConnectionId, ConnectionPtr> connections_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_set<ConnectionId> were_up_ ABSL_GUARDED_BY(mu_);  // those of connectors
  Requests requests_ ABSL_GUARDED_BY(mu_);
  bool is_asked_ ABSL_GUARDED_BY(mu_) = false;
  bool is_asleep_ ABSL_GUARDED_BY(mu_) = false;

  // The poller's:
  LimitedLog log_;
  FdPoller fds_;
  ShmListener listener_;
  std::vector<ConnectionPtr> connectors_;  // those that are not connected now
  std::vector<ConnectionPtr> up_;
  bool lacks_memory_ = false;  // whether frames wait for memory or for slots
  // Channels of connections that are over, whose peers may still read what was sent.
  std::vector<std::shared_ptr<ShmChannel>> closing_;
  absl::Time look_at_;  // when to look which of them still may

  Mutex join_mu_;
  bool is_joined_ ABSL_GUARDED_BY(join_mu_) = false;
  std::thread poller_ ABSL_GUARDED_BY(join_mu_);  // last: it uses everything above
};

// ---- Calls of other threads

void ShmTransportImpl::Wake() {
  is_asked_ = true;
  // An awake poller looks at is_asked_ before it sleeps. One that sleeps needs a single write,
  // however many requests come before it wakes.
  if (!is_asleep_) return;
  is_asleep_ = false;
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(wake_.get(), &one, sizeof(one));
}

absl::StatusOr<std::vector<Endpoint>> ShmTransportImpl::Listen(const std::string& address) {
  BDN_ASSIGN_OR_RETURN(const std::string name, ParseShmAddress(address));
  BDN_ASSIGN_OR_RETURN(ShmListeningSocket listener, ListenAt(name));
  MutexLock lock(&mu_);
  if (requests_.is_closed) return Unavailable("listen at %s: closed", address);
  requests_.listeners.push_back(std::move(listener));
  Wake();
  return std::vector<Endpoint>{{std::string(kShmScheme), name, options_.security}};
}

absl::StatusOr<ConnectionId> ShmTransportImpl::Connect(const Peer& peer) {
  BDN_ASSIGN_OR_RETURN(const std::string name, NameOf(peer));
  return AddConnector(name, peer, FileDescriptor());
}

absl::StatusOr<ConnectionId> ShmTransportImpl::ConnectNow(const Peer& peer) {
  BDN_ASSIGN_OR_RETURN(const std::string name, NameOf(peer));
  BDN_ASSIGN_OR_RETURN(FileDescriptor socket, ConnectTo(name));
  return AddConnector(name, peer, std::move(socket));
}

absl::StatusOr<ConnectionId> ShmTransportImpl::AddConnector(const std::string& name,
                                                            const Peer& peer,
                                                            FileDescriptor socket) {
  if (peer.secret.size() > kMaxSecretBytes) {
    return InvalidArgument("connect to shm://%s: a secret of %d bytes, at most %d", name,
                           peer.secret.size(), kMaxSecretBytes);
  }
  BDN_ASSIGN_OR_RETURN(std::shared_ptr<SharedMemory> mine, ShmChannel::MakeControl());
  MutexLock lock(&mu_);
  if (requests_.is_closed) return Unavailable("connect to shm://%s: closed", name);
  const auto connection =
      std::make_shared<ShmPeer>(ConnectionOwner(), ++last_connection_, /*is_connector=*/true);
  connection->name = name;
  connection->secret = peer.secret;
  connection->greeting = std::move(socket);
  connection->mine = std::move(mine);
  connections_[connection->id()] = connection;
  requests_.connectors.push_back(connection);
  Wake();
  return connection->id();
}

void ShmTransportImpl::Disconnect(ConnectionId connection) {
  MutexLock lock(&mu_);
  requests_.ended.push_back(connection);
  Wake();
}

void ShmTransportImpl::Admit(Admission admission) {
  MutexLock lock(&mu_);
  requests_.admission = std::move(admission);
  Wake();
}

ConnectionPtr ShmTransportImpl::Find(ConnectionId id) const {
  MutexLock lock(&mu_);
  const auto found = connections_.find(id);
  return found == connections_.end() ? nullptr : found->second;
}

bool ShmTransportImpl::WasUp(ConnectionId connection) const {
  MutexLock lock(&mu_);
  return were_up_.contains(connection);
}

PublicKey ShmTransportImpl::KeyOf(ConnectionId connection) const {
  const ConnectionPtr found = Find(connection);
  return found == nullptr ? PublicKey() : found->key;
}

void ShmTransportImpl::Close() {
  MutexLock lock(&mu_);
  requests_.is_closed = true;
  Wake();
}

void ShmTransportImpl::Join() {
  MutexLock join_lock(&join_mu_);
  if (is_joined_) return;
  {
    MutexLock lock(&mu_);
    requests_.is_joining = true;
    Wake();
  }
  poller_.join();
  copies_.Forget();  // peers may still read the copies, but originals are ours to free
  is_joined_ = true;
}

// ---- Sending, on any thread

void ShmTransportImpl::Finish(SendDone done, absl::Status status) {
  if (!status.ok()) counters_.sends_failed.Add();
  MutexLock lock(&mu_);
  // A SendDone must not run inside Send, so the poller runs it.
  requests_.done.push_back({std::move(done), std::move(status)});
  Wake();
}

void ShmTransportImpl::Send(ConnectionId to, Frame frame, SendDone done) {
  if (frame.payload.size() > options_.max_payload_bytes) {
    return Finish(std::move(done),
                  InvalidArgument("%s: payload of %d bytes, at most %d", Describe(frame.header),
                                  frame.payload.size(), options_.max_payload_bytes));
  }
  const ConnectionPtr connection = Find(to);
  if (connection == nullptr) {
    bool was_one;
    {
      MutexLock lock(&mu_);
      was_one = to != 0 && to <= last_connection_;
    }
    return Finish(std::move(done), was_one ? Unavailable("send: connection %d is gone", to)
                                           : NotFound("send: no connection %d", to));
  }
  ShmConnection::Sent sent = connection->Send(std::move(frame), &done);
  if (sent.broken != nullptr) {
    MutexLock lock(&mu_);
    // Only the poller ends connections. It compares channels, since by then the connection may have
    // another one.
    requests_.broken.emplace_back(connection, std::move(sent.broken));
    Wake();
  }
  if (!sent.waits) return Finish(std::move(done), std::move(sent.status));
  // The poller may have looked for releases, or for memory, just before the frame was queued, and
  // would otherwise sleep without another look.
  MutexLock lock(&mu_);
  Wake();
}

// ---- The poller

void ShmTransportImpl::RunPoller() {
  fds_.Watch(wake_.get(), [this] {
    uint64_t count;
    [[maybe_unused]] const ssize_t got = read(wake_.get(), &count, sizeof(count));
  });
  bool is_closed = false;
  while (true) {
    Requests requests;
    {
      MutexLock lock(&mu_);
      requests = std::exchange(requests_, Requests());
      // These two are states, and not requests that are done once.
      requests_.is_closed = requests.is_closed;
      requests_.is_joining = requests.is_joining;
      is_asked_ = false;
    }
    if (!is_closed) Apply(&requests);
    if (requests.is_closed && !is_closed) {
      CloseAll();
      is_closed = true;
    }
    for (Done& done : requests.done) done.done(std::move(done.status));
    if (requests.is_joining) {
      MutexLock lock(&mu_);
      // A request that came meanwhile, as a Send that has just failed, has a SendDone to run first.
      if (!is_asked_) return;
      continue;
    }
    bool was_busy = false;
    lacks_memory_ = false;
    // A copy, as Service may end a connection, which takes it out of up_.
    const std::vector<ConnectionPtr> up = up_;
    for (const ConnectionPtr& connection : up) was_busy |= Service(connection);
    Sleep(!was_busy);
  }
}

void ShmTransportImpl::Apply(Requests* requests) {
  for (ShmListeningSocket& socket : requests->listeners) listener_.Add(std::move(socket));
  for (const ConnectionPtr& connector : requests->connectors) {
    connectors_.push_back(connector);
    Greet(connector);
  }
  if (requests->admission.has_value()) ApplyAdmission(*std::move(requests->admission));
  for (const auto& [connection, channel] : requests->broken) {
    if (connection->channel() == channel) End(connection, EndReason::kBrokeRules);
  }
  for (const ConnectionId id : requests->ended) {
    const ConnectionPtr ended = Find(id);
    if (ended != nullptr && ended->is_connector()) Drop(ended);
  }
}

int ShmTransportImpl::TimeoutMs() const {
  absl::Time next = listener_.NextTime();
  if (lacks_memory_) next = std::min(next, clock_->Now() + kRetryDelay);
  if (!closing_.empty()) next = std::min(next, look_at_);
  for (const ConnectionPtr& connector : connectors_) next = std::min(next, connector->retry_at);
  if (next == absl::InfiniteFuture()) return -1;
  // Rounded up: a wait that ends a little early would be followed by many of 0 ms. A long one is
  // cut to what an int holds, and computed anew after it.
  const int64_t left = absl::ToInt64Milliseconds(next - clock_->Now()) + 1;
  return static_cast<int>(std::clamp<int64_t>(left, 0, 60'000));
}

void ShmTransportImpl::Sleep(bool may_wait) {
  // Each connection says that it sleeps, and only then looks once more for work. A peer that
  // publishes before that look is found by it, and one that publishes after it has seen the
  // announcement and sends a wake. In the other order a frame that comes in between would wait
  // until the timeout.
  //
  // A poller that had work comes back at once, so it announces no sleep, and nobody need wake it.
  const bool falls_asleep = may_wait;
  for (const ConnectionPtr& connection : up_) {
    if (!falls_asleep) break;
    const std::shared_ptr<ShmChannel> channel = connection->channel();
    channel->FallAsleep();
    may_wait = may_wait && !channel->HasWork();
  }
  {
    MutexLock lock(&mu_);
    // The same for requests of other threads: one that came before is seen here, and one that comes
    // after finds is_asleep_ set, and writes to wake_.
    is_asleep_ = may_wait && !is_asked_;
    may_wait = is_asleep_;
  }
  // Without a wait, too, packets must be read: a busy connection must not keep others from their
  // handshake or their end.
  fds_.Wait(may_wait ? TimeoutMs() : 0);
  {
    MutexLock lock(&mu_);
    is_asleep_ = false;
  }
  for (const ConnectionPtr& connection : up_) {
    if (!falls_asleep) break;
    // Before any source runs: sources may end connections, and a peer need not wake an end that is
    // awake.
    connection->channel()->WakeUp();
  }
  fds_.Run();
  const absl::Time now = clock_->Now();
  listener_.OnTime(now);
  if (!closing_.empty() && look_at_ <= now) {
    std::erase_if(closing_, [](const auto& channel) { return !channel->PeerMayRead(); });
    look_at_ = now + kRetryDelay;
  }
  const std::vector<ConnectionPtr> connectors = connectors_;
  for (const ConnectionPtr& connector : connectors) {
    if (connector->retry_at <= now) Greet(connector);
  }
}

// ---- A connection's frames

// Receives and sends what there is. Returns whether a frame came or the connection ended: then
// there may be more to do at once.
bool ShmTransportImpl::Service(const ConnectionPtr& connection) {
  const std::shared_ptr<ShmChannel> channel = connection->channel();
  if (channel == nullptr) return false;
  int received = 0;
  bool has_asked = false;  // for the next segment
  while (received < kReceiveBatch) {
    Frame frame;
    const ShmChannel::ReceiveResult result = channel->Receive(&frame);
    if (result == ShmChannel::ReceiveResult::kNothing) break;
    if (result == ShmChannel::ReceiveResult::kNeedsSegment && !has_asked) {
      // The peer sends a segment before it publishes a frame in it. So the segment is at the socket
      // now, or the peer breaks the rules.
      has_asked = true;
      if (!ReadPackets(connection)) return true;
      continue;
    }
    const bool is_too_long = result == ShmChannel::ReceiveResult::kFrame &&
                             frame.payload.size() > options_.max_payload_bytes;
    if (result == ShmChannel::ReceiveResult::kNeedsSegment ||
        result == ShmChannel::ReceiveResult::kBroken || is_too_long) {
      End(connection, EndReason::kBrokeRules);
      return true;
    }
    ++received;
    has_asked = false;
    if (result == ShmChannel::ReceiveResult::kMalformed) {
      counters_.frames_malformed.Add();
      continue;
    }
    counters_.frames_received.Add();
    counters_.bytes_received.Add(kHeaderBytes + frame.payload.size());
    handler_(connection->id(), std::move(frame));
  }
  // Only when nothing is left to receive, so that no frame is lost that the peer published before
  // its end.
  if (received == 0 && connection->peer_closes) {
    End(connection, EndReason::kPeerEnded);
    return true;
  }
  // Before Flush, which needs the slots that the peer has released.
  if (!channel->Reap()) {
    End(connection, EndReason::kBrokeRules);
    return true;
  }
  ShmConnection::Flushed flushed = connection->Flush();
  lacks_memory_ |= flushed.is_stuck;  // slots may be lacking instead; the peer tells of those
  Tell(&flushed.done);
  return received > 0;
}

bool ShmTransportImpl::ReadPackets(const ConnectionPtr& connection) {
  const std::shared_ptr<ShmChannel> channel = connection->channel();
  if (channel == nullptr) return true;
  for (int i = 0; i < kPacketBatch && connection->has_socket; ++i) {
    Packet packet = ReceivePacket(channel->socket());
    if (packet.result == Packet::Result::kNothing) return true;
    if (packet.result == Packet::Result::kEnd) {
      // Service ends the connection, once it has received the frames that are still there.
      connection->has_socket = false;
      connection->peer_closes = true;
      fds_.Forget(channel->socket());
      return true;
    }
    if (ReadAs<ShmPacket>(packet, ShmPacket::kWake)) continue;
    if (ReadAs<ShmPacket>(packet, ShmPacket::kClosing)) {
      connection->peer_closes = true;
      continue;
    }
    const auto segment = ReadAs<ShmSegment>(packet, ShmPacket::kSegment);
    if (!segment.has_value()) {
      End(connection, EndReason::kBrokeRules);
      return false;
    }
    const absl::Status added = channel->AddSegment(*segment, std::move(packet.fd));
    if (!added.ok()) {
      const bool lacks_memory = absl::IsResourceExhausted(added);
      if (lacks_memory) MemoryReserve::OnExhausted();
      End(connection, lacks_memory ? EndReason::kNoMemory : EndReason::kBrokeRules);
      return false;
    }
  }
  return true;
}

void ShmTransportImpl::Tell(std::vector<Done>* done) {
  for (Done& each : *done) {
    if (!each.status.ok()) counters_.sends_failed.Add();
    each.done(std::move(each.status));
  }
}

// ---- The end of one

// Closes a channel, and keeps it while its peer may still read payloads that were sent; one that
// broke the rules has no claim to them. Payloads lent to us need no such care: each of them holds
// the channel itself.
void ShmTransportImpl::CloseChannel(std::shared_ptr<ShmChannel> channel, bool broke_rules) {
  fds_.Forget(channel->socket());
  channel->SayClosing();
  if (!broke_rules && channel->PeerMayRead()) closing_.push_back(std::move(channel));
}

void ShmTransportImpl::End(const ConnectionPtr& connection, EndReason reason) {
  const bool broke_rules = reason == EndReason::kBrokeRules;
  if (reason != EndReason::kPeerEnded) {
    // Counted at listeners alone, as TransportStats has it.
    if (!connection->is_connector()) counters_.connections_cut.Add();
    log_.Warning("cut connection %d over shared memory: %s", connection->id(), TextOf(reason));
  }
  if (!connection->is_connector()) {
    Drop(connection, broke_rules);
    if (gone_) gone_(connection->id());
    return;
  }
  std::shared_ptr<ShmChannel> channel = connection->Disconnect();
  if (channel == nullptr) return;
  up_.erase(std::find(up_.begin(), up_.end(), connection));
  CloseChannel(std::move(channel), broke_rules);
  connectors_.push_back(connection);
  RetryLater(connection.get());
}

// Ends a connection for good.
void ShmTransportImpl::Drop(const ConnectionPtr& connection, bool broke_rules) {
  {
    MutexLock lock(&mu_);
    // First out of the table, so that no Send finds it any more; Close then ends the sends that
    // found it before.
    connections_.erase(connection->id());
  }
  ShmConnection::Closed closed = connection->Close();
  if (closed.channel != nullptr) {
    up_.erase(std::find(up_.begin(), up_.end(), connection));
    CloseChannel(std::move(closed.channel), broke_rules);
    if (!connection->is_connector()) counters_.connections_open.Remove();
  } else {
    std::erase(connectors_, connection);
    if (connection->greeting.is_open()) fds_.Forget(connection->greeting.get());
    connection->greeting = FileDescriptor();
  }
  Tell(&closed.done);
}

void ShmTransportImpl::CloseAll() {
  listener_.Close();
  std::vector<ConnectionPtr> all;
  {
    MutexLock lock(&mu_);
    for (const auto& [id, connection] : connections_) all.push_back(connection);
  }
  for (const ConnectionPtr& connection : all) Drop(connection);
}

// ---- The beginning of one, as its connector

void ShmTransportImpl::RetryLater(ShmPeer* connection) {
  connection->greeting = FileDescriptor();
  connection->retry_at = clock_->Now() + kRetryDelay;
}

void ShmTransportImpl::Greet(const ConnectionPtr& connection) {
  connection->retry_at = absl::InfiniteFuture();
  if (!connection->greeting.is_open()) {
    absl::StatusOr<FileDescriptor> socket = ConnectTo(connection->name);
    if (!socket.ok()) {
      if (!absl::IsNotFound(socket.status())) log_.Warning("%s", socket.status().message());
      return RetryLater(connection.get());
    }
    // Control memory is new for each connection, because its counts begin at 0.
    absl::StatusOr<std::shared_ptr<SharedMemory>> mine = ShmChannel::MakeControl();
    if (!mine.ok()) {
      log_.Warning("connect to shm://%s: %s", connection->name, mine.status().message());
      return RetryLater(connection.get());
    }
    connection->mine = *std::move(mine);
    connection->greeting = *std::move(socket);
  }
  ShmHello hello{.secret_bytes = static_cast<uint32_t>(connection->secret.size()),
                 .key = options_.key.bytes};
  std::copy(connection->secret.begin(), connection->secret.end(), hello.secret.begin());
  if (!SendPacket(connection->greeting.get(), BytesOf(hello), connection->mine->fd())) {
    return RetryLater(connection.get());
  }
  fds_.Watch(connection->greeting.get(), [this, connection] { OnGreeted(connection); });
}

void ShmTransportImpl::OnGreeted(const ConnectionPtr& connection) {
  Packet packet = ReceivePacket(connection->greeting.get());
  if (packet.result == Packet::Result::kNothing) return;
  fds_.Forget(connection->greeting.get());
  // A listener that refuses us closes the socket without a reason. It may admit us later, so this
  // ends in another attempt as well.
  if (packet.result == Packet::Result::kEnd || !ReadAs<ShmPacket>(packet, ShmPacket::kWelcome)) {
    return RetryLater(connection.get());
  }
  auto peers = SharedMemory::MapPeers(std::move(packet.fd), sizeof(ShmControl));
  if (!peers.ok()) {
    log_.Warning("connect to shm://%s: %s", connection->name, peers.status().message());
    return RetryLater(connection.get());
  }
  connectors_.erase(std::find(connectors_.begin(), connectors_.end(), connection));
  // The listener has the memory mapped; without our descriptor nothing but the mappings holds it.
  connection->mine->CloseDescriptor();
  Up(connection, std::make_shared<ShmChannel>(std::exchange(connection->greeting, FileDescriptor()),
                                              std::exchange(connection->mine, nullptr),
                                              *std::move(peers), arena_));
}

void ShmTransportImpl::Up(const ConnectionPtr& connection, std::shared_ptr<ShmChannel> channel) {
  // From now on there is a peer that can read payloads of the arena in place.
  arena_->Enable();
  if (connection->is_connector()) {
    MutexLock lock(&mu_);
    were_up_.insert(connection->id());
  }
  connection->peer_closes = false;
  connection->has_socket = true;
  fds_.Watch(channel->socket(), [this, connection] { ReadPackets(connection); });
  connection->Connect(std::move(channel));
  up_.push_back(connection);
}

// ---- And as its listener

void ShmTransportImpl::OnGuest(ShmListener::Guest guest) {
  ConnectionPtr connection;
  {
    MutexLock lock(&mu_);
    connection =
        std::make_shared<ShmPeer>(ConnectionOwner(), ++last_connection_, /*is_connector=*/false);
    connection->key = guest.key;
    connections_[connection->id()] = connection;
  }
  counters_.connections_open.Add();
  guest.mine->CloseDescriptor();
  Up(connection, std::make_shared<ShmChannel>(std::move(guest.socket), std::move(guest.mine),
                                              std::move(guest.peers), arena_));
}

// Applies the new list of admitted keys; ends connections whose key is not on it.
void ShmTransportImpl::ApplyAdmission(Admission admission) {
  listener_.SetAdmission(std::move(admission));
  const std::vector<ConnectionPtr> up = up_;
  for (const ConnectionPtr& connection : up) {
    if (connection->is_connector() || listener_.Admits(connection->key)) continue;
    End(connection, EndReason::kNotAdmitted);
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<ShmTransport>> ShmTransport::Make(const ShmOptions& options) {
  if (options.security == LinkSecurity::kEncrypted || options.max_newcomers < 1 ||
      options.max_frames_queued < 1 || options.max_payload_bytes > kMaxPayloadBytes ||
      options.handshake_timeout < absl::Milliseconds(1) ||
      options.handshake_timeout > absl::Hours(1)) {
    return InvalidArgument(
        "shm options: security %s (open or authenticated), max_newcomers %d, max_frames_queued %d "
        "(at "
        "least 1), max_payload_bytes %d, handshake_timeout %s (1ms to 1h)",
        LinkSecurityName(options.security), options.max_newcomers, options.max_frames_queued,
        options.max_payload_bytes, absl::FormatDuration(options.handshake_timeout));
  }
  FileDescriptor epoll(epoll_create1(EPOLL_CLOEXEC));
  FileDescriptor wake(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!epoll.is_open() || !wake.is_open()) {
    return ResourceExhausted("shared memory: %s", std::strerror(errno));
  }
  return std::make_unique<ShmTransportImpl>(options, std::move(epoll), std::move(wake));
}

}  // namespace bdn
