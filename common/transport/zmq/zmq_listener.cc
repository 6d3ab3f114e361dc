#include "common/transport/zmq/zmq_listener.h"

#include <unistd.h>
#include <zmq.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "common/base/status.h"
#include "common/transport/zmq/tcp_bytes.h"
#include "common/transport/zmq/zmq_address.h"

namespace bdn {
namespace {

// The turns that end between two weighings: the first of them may have begun before the last
// weighing; the second has both begun and ended since.
constexpr int kTurnsOfWeighing = 2;
// Bytes of a message besides its payload: its header, and what ZeroMQ and encryption add.
constexpr uint64_t kMessageOverhead = uint64_t{64} << 10;
// Within this time ZeroMQ tells of a connection that it has accepted, on the busiest machine.
constexpr absl::Duration kToldOfWithin = absl::Seconds(2);

}  // namespace

absl::StatusOr<std::unique_ptr<ZmqListener>> ZmqListener::Open(const Owner* owner,
                                                               const std::string& address) {
  BDN_ASSIGN_OR_RETURN(const ZmqAddress parsed, ParseZmqAddress(address));
  std::unique_ptr<ZmqListener> listener(new ZmqListener(owner));
  listener->security_ = owner->options->security.value_or(
      parsed.is_local ? LinkSecurity::kAuthenticated : LinkSecurity::kEncrypted);
  BDN_ASSIGN_OR_RETURN(listener->socket_, OpenListener(owner->context, *owner->options, parsed,
                                                       listener->security_, *owner->keys));
  BDN_ASSIGN_OR_RETURN(listener->monitor_, OpenMonitor(owner->context, listener->socket_));
  // ZeroMQ would take any file's place, and leave its mode to the umask, so the listening
  // descriptor is made here and handed over.
  FileDescriptor file;
  if (parsed.is_ipc) {
    BDN_ASSIGN_OR_RETURN(file, ListenAtSocketFile(parsed.path));
    listener->socket_file_ = parsed.path;
    const int fd = file.get();
    zmq_setsockopt(listener->socket_, ZMQ_USE_FD, &fd, sizeof(fd));
  }
  if (zmq_bind(listener->socket_, address.c_str()) != 0) {
    if (errno == EADDRINUSE) return AlreadyExists("%s: the address is in use", address);
    return InvalidArgument("listen at %s: %s", address, zmq_strerror(errno));
  }
  (void)file.Release();  // ZeroMQ closes it from now on
  char endpoint[256] = {};
  size_t size = sizeof(endpoint);
  zmq_getsockopt(listener->socket_, ZMQ_LAST_ENDPOINT, endpoint, &size);
  listener->endpoint_ = endpoint;
  return listener;
}

ZmqListener::~ZmqListener() {
  // Removed while the socket is still bound: so nobody else can have taken the path.
  if (!socket_file_.empty()) unlink(socket_file_.c_str());
  if (monitor_ != nullptr) {
    zmq_socket_monitor(socket_, nullptr, 0);
    zmq_close(monitor_);
  }
  if (socket_ != nullptr) zmq_close(socket_);
}

// ---- Receiving

void ZmqListener::OnReady(bool monitor_is_ready, bool socket_is_ready) {
  // Events first: a peer then seldom has to wait for its connection to be told of (PeerTable).
  if (monitor_is_ready) FollowConnections();
  if (!monitor_is_ready && !socket_is_ready && !has_ended()) {
    // Nothing can be read, so every message that had ended has been.
    turns_since_weighing_ = kTurnsOfWeighing;
    return;
  }
  std::string name;
  for (int i = 0; i < kReceiveBatch; ++i) {
    if (!ReadPeerName(socket_, &name)) {
      // All messages were read, so closed peers can be forgotten, and every turn is over.
      EndTurn();
      turns_since_weighing_ = kTurnsOfWeighing;
      return Forget(peers_.TakeClosed());
    }
    ReadFrom(name);
    if (++read_in_turn_ >= peers_.turn_length()) EndTurn();
  }
}

// ZeroMQ takes messages of the connections that have some in turn, so after PeerTable::turn_length
// messages each of these had one read.
void ZmqListener::EndTurn() {
  read_in_turn_ = 0;
  ++turns_since_weighing_;
  Forget(peers_.EndTurn());
}

void ZmqListener::ReadFrom(const std::string& name) {
  PeerTable::Peer* peer = peers_.Find(name);
  Frame frame;
  FrameOrigin origin;
  const ReadResult result = ReadFrame(socket_, &frame, peer == nullptr ? &origin : nullptr);
  // A message that is no frame makes a peer, too: without one its connection could not be cut.
  if (peer == nullptr) peer = AddPeer(name, origin);
  peers_.OnRead(peer);
  if (result != ReadResult::kFrame) owner_->counters->frames_malformed.Add();
  if (peer->is_cut) return;
  if (result == ReadResult::kTooManyParts) Cut(peer, "it sent a message that can be no frame");
  if (result == ReadResult::kFrame) owner_->on_frame(peer->id, std::move(frame));
}

PeerTable::Peer* ZmqListener::AddPeer(const std::string& name, const FrameOrigin& origin) {
  // ZeroMQ has told of the connections that had the descriptor before, and nearly always of this
  // one.
  FollowConnections();
  PeerTable::Peer* const peer =
      peers_.Add(owner_->on_new(this, origin), name, origin.fd, origin.key, owner_->clock->Now());
  owner_->counters->connections_open.Add();
  // It was admitted in its handshake, and its key has left the list since.
  if (security_ != LinkSecurity::kOpen && !owner_->admissions->Admits(origin.key)) {
    Cut(peer, "its key has left the job");
  }
  return peer;
}

// ---- Who is connected

void ZmqListener::FollowConnections() {
  while (const auto event = ReadMonitor(monitor_)) {
    switch (event->kind) {
      case MonitorEvent::Kind::kAccepted: {
        const PeerTable::Peer* const peer = peers_.OnAccepted(event->value, owner_->clock->Now());
        if (peer != nullptr && peer->is_cut) EndConnection(peer->fd);
        break;
      }
      case MonitorEvent::Kind::kClosed:
        // A connection that ends before it brings a message counts as refused.
        if (!peers_.OnClosed(event->value)) owner_->counters->connections_refused.Add();
        break;
    }
  }
}

void ZmqListener::Forget(const std::vector<PeerTable::Peer>& closed) {
  for (const PeerTable::Peer& peer : closed) {
    owner_->counters->connections_open.Remove();
    owner_->on_gone(peer.id);
  }
}

// Until a connection's handshake is over ZeroMQ reads all that its peer sends, whatever peer that
// is.
void ZmqListener::LimitNewcomers() {
  const ZmqOptions& options = *owner_->options;
  if (!has_newcomers()) return;
  FollowConnections();  // as late as can be: a descriptor may belong to another connection by now
  peers_.CloseUntoldBefore(owner_->clock->Now() - kToldOfWithin);
  // ZeroMQ ends a handshake that takes longer than handshake_timeout; twice that time leaves room
  // for its threads to be late.
  peers_.ForgetNewcomersBefore(owner_->clock->Now() - 2 * options.handshake_timeout);
  while (peers_.newcomers().size() > static_cast<size_t>(options.max_newcomers)) {
    CutNewcomer(peers_.newcomers().begin()->second.fd);
  }
  // Anybody's frames are welcome, so there is nothing to protect.
  if (security_ == LinkSecurity::kOpen) return;
  if (owner_->clock->Now() < next_weighing_) return;
  next_weighing_ = owner_->clock->Now() + kWeighingInterval;
  uint64_t sum = 0;
  std::vector<std::pair<uint64_t, int>> sent;
  for (const auto& [order, newcomer] : peers_.newcomers()) {
    sent.emplace_back(TcpBytesReceived(newcomer.fd), newcomer.fd);
    sum += sent.back().first;
  }
  if (sum <= options.max_newcomer_bytes) return;
  // The largest senders go first, so that few connections must go.
  std::sort(sent.begin(), sent.end());
  for (; sum > options.max_newcomer_bytes; sent.pop_back()) {
    sum -= sent.back().first;
    CutNewcomer(sent.back().second);
  }
  owner_->log->Warning("cut connections that had sent over %d bytes together, and no frame",
                       options.max_newcomer_bytes);
}

void ZmqListener::LimitMessages() {
  if (!has_messages_to_limit() || turns_since_weighing_ < kTurnsOfWeighing) return;
  const absl::Time now = owner_->clock->Now();
  const bool weighs_all = now >= next_message_weighing_;
  if (!weighs_all && (!peers_.has_watched() || now < next_watched_weighing_)) return;
  if (weighs_all) next_message_weighing_ = now + kMessageWeighingInterval;
  next_watched_weighing_ = now + kWeighingInterval;
  turns_since_weighing_ = 0;
  const ZmqOptions& options = *owner_->options;
  const PeerTable::MostUnread most{
      options.max_payload_bytes + kMessageOverhead,
      std::min(options.max_first_bytes, options.max_payload_bytes) + kMessageOverhead,
      options.max_first_bytes_together};
  const auto weighed = weighs_all ? PeerTable::Weighed::kAll : PeerTable::Weighed::kWatched;
  for (const PeerTable::Weight& weight : peers_.Weigh(weighed, TcpBytesRead, most)) {
    if (weight.peer != nullptr) {
      Cut(weight.peer,
          absl::StrFormat("it sent %d bytes without ending a message, and a frame has at most %d "
                          "(max-frame-bytes)",
                          weight.unread, options.max_payload_bytes));
    } else {
      CutNewcomer(weight.fd);
      owner_->log->Warning(
          "cut a connection that had brought no frame: it sent %d bytes without ending its first "
          "message, "
          "where one has at most %d, and all such connections together %d",
          weight.unread, most.first_bytes, most.first_bytes_together);
    }
  }
}

// Ends the connection of a descriptor; ZeroMQ closes it when it can neither read nor write. Where
// the descriptor was just given to another connection, that one is ended in its place, and its peer
// connects again.
void ZmqListener::CutNewcomer(int fd) {
  owner_->counters->connections_cut.Add();
  EndConnection(fd);
  peers_.ForgetNewcomer(fd);
}

void ZmqListener::Cut(PeerTable::Peer* peer, const std::string& why) {
  if (peer->is_cut) return;
  peer->is_cut = true;
  owner_->counters->connections_cut.Add();
  // The descriptor of a closed peer, or of one that is not told of, may belong to another
  // connection by now.
  if (!peer->is_closed && peer->is_told_of) EndConnection(peer->fd);
  owner_->log->Warning("cut connection %d: %s", peer->id, why);
}

void ZmqListener::ApplyAdmissions() {
  if (security_ == LinkSecurity::kOpen) return;
  FollowConnections();
  for (PeerTable::Peer* peer : peers_.peers()) {
    if (!owner_->admissions->Admits(peer->key)) Cut(peer, "its key has left the job");
  }
}

// ---- Sending

absl::StatusOr<std::shared_ptr<SendQueue>> ZmqListener::BeginFrame(ConnectionId to,
                                                                   const Frame& frame) {
  PeerTable::Peer* const peer = peers_.Find(to);
  if (peer == nullptr || peer->is_cut) return Unavailable("send: connection %d is gone", to);
  const uint64_t most = owner_->options->max_bytes_queued;
  const uint64_t queued = peer->queue->bytes.load();
  absl::Status status;
  // An empty queue takes any frame, so that one longer than the limit can go at all.
  if (queued > 0 && queued + frame.payload.size() > most) {
    status = ResourceExhausted("%s: %d bytes wait for connection %d, at most %d (max-bytes-queued)",
                               Describe(frame.header), queued, to, most);
  } else {
    status = WriteHeader(socket_, &peer->name, frame);
  }
  if (status.ok()) return peer->queue;
  // A peer that has gone does not come back under this name, so further sends need not try.
  if (absl::IsUnavailable(status)) peers_.Close(peer);
  if (absl::IsResourceExhausted(status) && HasStalled(*peer->queue)) {
    Cut(peer, "it takes nothing of what is sent to it");
  }
  return status;
}

bool ZmqListener::HasStalled(const SendQueue& queue) const {
  const absl::Duration timeout = owner_->options->silence_timeout;
  if (timeout == absl::ZeroDuration() || queue.bytes.load() == 0) return false;
  return absl::ToUnixNanos(owner_->clock->Now()) - queue.moved_at_ns.load() >
         absl::ToInt64Nanoseconds(timeout);
}

}  // namespace bdn
