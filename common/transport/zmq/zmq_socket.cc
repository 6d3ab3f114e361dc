#include "common/transport/zmq/zmq_socket.h"

#include <zmq.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <utility>

#include "common/base/status.h"
#include "common/transport/zmq/zap_handler.h"

namespace bdn {
namespace {

// ZeroMQ doubles the time between two attempts to connect up to this.
constexpr int kMaxReconnectMs = 2000;
// The kernel's own probes find a peer that is gone within a minute, also where heartbeats are off.
constexpr int kKeepaliveIdleSeconds = 30;
constexpr int kKeepaliveIntervalSeconds = 10;
constexpr int kKeepaliveProbes = 3;
// Frames of one peer that ZeroMQ has read and we have not; at this many it reads no more from that
// peer.
constexpr int kMaxFramesUnread = 1000;
// One late heartbeat must not end a connection.
constexpr int kHeartbeatsInSilence = 5;
// The answer to a heartbeat comes behind the frames that are on their way, and those take long
// where many share a link. So a late answer is a weaker sign than bytes that nobody acknowledges,
// and may take so many times as long.
constexpr int kAnswerSilences = 6;

// A part of a message that is read. Not thread-safe.
class Part {
 public:
  Part() { zmq_msg_init(&message_); }
  ~Part() { zmq_msg_close(&message_); }
  Part(const Part&) = delete;
  Part& operator=(const Part&) = delete;

  // Receives a part. Returns false when there is none (or the socket is gone).
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
  FrameOrigin origin() {
    FrameOrigin origin{.fd = zmq_msg_get(&message_, ZMQ_SRCFD), .key = {}};
    const char* const user = zmq_msg_gets(&message_, "User-Id");
    if (user != nullptr) origin.key = PublicKeyFromZ85(user);
    return origin;
  }

 private:
  zmq_msg_t message_;
};

// Makes a buffer of a part without a copy; the buffer owns the part from then on.
Buffer ToBuffer(std::unique_ptr<Part> part) {
  const MutableByteSpan bytes = part->bytes();
  return Buffer::Wrap(bytes, [owned = part.release()] { delete owned; });
}

void SetOption(void* socket, int option, int value) {
  zmq_setsockopt(socket, option, &value, sizeof(value));
}

// Sets a text option. Returns false where libzmq refuses it, which is an error for options that
// security stands on.
bool SetText(void* socket, int option, const std::string& text) {
  return zmq_setsockopt(socket, option, text.data(), text.size()) == 0;
}

int Milliseconds(absl::Duration duration) {
  return static_cast<int>(absl::ToInt64Milliseconds(duration));
}

absl::StatusOr<void*> OpenSocket(void* context, int type, const ZmqOptions& options,
                                 const ZmqAddress& address) {
  void* socket = zmq_socket(context, type);
  if (socket == nullptr) return ResourceExhausted("zmq_socket: %s", zmq_strerror(errno));
  SetOption(socket, ZMQ_LINGER, Milliseconds(options.linger));
  // The limit is of each part, and the header is a part.
  const int64_t max_bytes = static_cast<int64_t>(std::max(options.max_payload_bytes, kHeaderBytes));
  zmq_setsockopt(socket, ZMQ_MAXMSGSIZE, &max_bytes, sizeof(max_bytes));
  SetOption(socket, ZMQ_RECONNECT_IVL_MAX, kMaxReconnectMs);
  SetOption(socket, ZMQ_TCP_KEEPALIVE, 1);
  SetOption(socket, ZMQ_TCP_KEEPALIVE_IDLE, kKeepaliveIdleSeconds);
  SetOption(socket, ZMQ_TCP_KEEPALIVE_INTVL, kKeepaliveIntervalSeconds);
  SetOption(socket, ZMQ_TCP_KEEPALIVE_CNT, kKeepaliveProbes);
  SetOption(socket, ZMQ_HANDSHAKE_IVL, Milliseconds(options.handshake_timeout));
  const int silence = Milliseconds(options.silence_timeout);
  if (silence > 0) {
    SetOption(socket, ZMQ_HEARTBEAT_IVL, std::max(1, silence / kHeartbeatsInSilence));
    SetOption(socket, ZMQ_TCP_MAXRT, silence);
    SetOption(socket, ZMQ_HEARTBEAT_TIMEOUT, silence * kAnswerSilences);
    // The peer is told this time in tenths of a second, of which 16 bits hold so many milliseconds.
    SetOption(socket, ZMQ_HEARTBEAT_TTL, std::min(silence * kAnswerSilences, 6'553'599));
  }
  if (address.is_ipv6) SetOption(socket, ZMQ_IPV6, 1);
  return socket;
}

bool SecureListener(void* socket, LinkSecurity security, const KeyPair& keys) {
  if (security == LinkSecurity::kOpen) return true;
  if (!SetText(socket, ZMQ_ZAP_DOMAIN, ZapDomainOf(security))) return false;
  const int on = 1;
  if (security == LinkSecurity::kAuthenticated) {
    return zmq_setsockopt(socket, ZMQ_PLAIN_SERVER, &on, sizeof(on)) == 0;
  }
  return zmq_setsockopt(socket, ZMQ_CURVE_SERVER, &on, sizeof(on)) == 0 &&
         SetText(socket, ZMQ_CURVE_SECRETKEY, keys.secret_text);
}

bool SecureConnector(void* socket, const PeerSecurity& peer, const KeyPair& keys) {
  switch (peer.security) {
    case LinkSecurity::kOpen:
      return true;
    case LinkSecurity::kAuthenticated:
      return SetText(socket, ZMQ_PLAIN_USERNAME, keys.public_text) &&
             SetText(socket, ZMQ_PLAIN_PASSWORD, ToZ85(peer.secret));
    case LinkSecurity::kEncrypted:
      return !peer.key.empty() && SetText(socket, ZMQ_CURVE_SERVERKEY, ToZ85(peer.key.view())) &&
             SetText(socket, ZMQ_CURVE_PUBLICKEY, keys.public_text) &&
             SetText(socket, ZMQ_CURVE_SECRETKEY, keys.secret_text);
  }
  return false;
}

}  // namespace

void DropUnsent(void* socket) { SetOption(socket, ZMQ_LINGER, 0); }

absl::StatusOr<void*> OpenListener(void* context, const ZmqOptions& options,
                                   const ZmqAddress& address, LinkSecurity security,
                                   const KeyPair& keys) {
  BDN_ASSIGN_OR_RETURN(void* const socket, OpenSocket(context, ZMQ_ROUTER, options, address));
  // Without it a frame to a peer that is gone is dropped as if it were sent.
  SetOption(socket, ZMQ_ROUTER_MANDATORY, 1);
  SetOption(socket, ZMQ_SNDHWM, options.max_frames_queued);
  SetOption(socket, ZMQ_RCVHWM, kMaxFramesUnread);
  if (SecureListener(socket, security, keys)) return socket;
  const int error = errno;
  zmq_close(socket);
  return Unimplemented("listening %s: %s", LinkSecurityName(security), zmq_strerror(error));
}

absl::StatusOr<void*> OpenConnector(void* context, const ZmqOptions& options,
                                    const ZmqAddress& address, const PeerSecurity& peer,
                                    const KeyPair& keys) {
  BDN_ASSIGN_OR_RETURN(void* const socket, OpenSocket(context, ZMQ_DEALER, options, address));
  // No frame is dropped because too many wait: the layers above bound what is in flight.
  SetOption(socket, ZMQ_SNDHWM, 0);
  SetOption(socket, ZMQ_RCVHWM, 0);
  if (SecureConnector(socket, peer, keys)) return socket;
  zmq_close(socket);
  return InvalidArgument("connecting %s: the peer's key or the secret is missing",
                         LinkSecurityName(peer.security));
}

absl::StatusOr<void*> OpenMonitor(void* context, void* listener) {
  const std::string name = absl::StrFormat("inproc://bdn-monitor-%p", listener);
  constexpr int kEvents = ZMQ_EVENT_ACCEPTED | ZMQ_EVENT_DISCONNECTED;
  if (zmq_socket_monitor(listener, name.c_str(), kEvents) != 0) {
    return ResourceExhausted("zmq_socket_monitor: %s", zmq_strerror(errno));
  }
  void* const monitor = zmq_socket(context, ZMQ_PAIR);
  if (monitor == nullptr) return ResourceExhausted("zmq_socket: %s", zmq_strerror(errno));
  SetOption(monitor, ZMQ_LINGER, 0);
  SetOption(monitor, ZMQ_RCVHWM, 0);  // events are small, and few for each connection
  if (zmq_connect(monitor, name.c_str()) == 0) return monitor;
  const int error = errno;
  zmq_close(monitor);
  return Internal("%s: %s", name, zmq_strerror(error));
}

std::optional<MonitorEvent> ReadMonitor(void* monitor) {
  for (;;) {
    Part part;
    if (!part.Receive(monitor)) return std::nullopt;
    // An event has 16 bits, its value 32; the address follows in a part of its own.
    const MutableByteSpan bytes = part.bytes();
    uint16_t event = 0;
    uint32_t value = 0;
    if (bytes.size() >= sizeof(event) + sizeof(value)) {
      std::memcpy(&event, bytes.data(), sizeof(event));
      std::memcpy(&value, bytes.data() + sizeof(event), sizeof(value));
    }
    for (bool more = part.has_more(); more;) {
      Part rest;
      more = rest.Receive(monitor) && rest.has_more();
    }
    const int number = static_cast<int>(value);
    if (event == ZMQ_EVENT_ACCEPTED) return MonitorEvent{MonitorEvent::Kind::kAccepted, number};
    if (event == ZMQ_EVENT_DISCONNECTED) return MonitorEvent{MonitorEvent::Kind::kClosed, number};
  }
}

bool ReadPeerName(void* listener, std::string* name) {
  Part part;
  if (!part.Receive(listener)) return false;
  const ByteSpan bytes = part.bytes();
  name->assign(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  return true;
}

ReadResult ReadFrame(void* socket, Frame* frame, FrameOrigin* origin) {
  Part header_part;
  if (!header_part.Receive(socket)) return ReadResult::kNothing;
  if (origin != nullptr) *origin = header_part.origin();
  absl::StatusOr<FrameHeader> header = DecodeHeader(header_part.bytes());
  Buffer payload;
  bool has_more = header_part.has_more();
  const bool has_payload = has_more;
  if (has_more) {
    auto part = std::make_unique<Part>();
    if (!part->Receive(socket)) return ReadResult::kNoFrame;
    has_more = part->has_more();
    payload = ToBuffer(std::move(part));
  }
  if (has_more) {
    payload = Buffer();
    while (has_more) {
      Part extra;
      if (!extra.Receive(socket)) break;
      has_more = extra.has_more();
    }
    return ReadResult::kTooManyParts;
  }
  if (!header.ok() || has_payload != !payload.empty() || payload.size() != header->payload_bytes) {
    return ReadResult::kNoFrame;
  }
  *frame = Frame{*header, std::move(payload)};
  return ReadResult::kFrame;
}

absl::Status WriteHeader(void* socket, const std::string* peer, const Frame& frame) {
  const auto header = EncodeHeader(frame.header);
  const int more = frame.payload.empty() ? 0 : ZMQ_SNDMORE;
  const bool sent = (peer == nullptr || zmq_send(socket, peer->data(), peer->size(),
                                                 ZMQ_DONTWAIT | ZMQ_SNDMORE) >= 0) &&
                    zmq_send(socket, header.data(), header.size(), ZMQ_DONTWAIT | more) >= 0;
  if (sent) return absl::OkStatus();
  if (errno == EAGAIN)
    return ResourceExhausted("%s: too many frames wait (max-frames-queued)",
                             Describe(frame.header));
  return Unavailable("%s: %s", Describe(frame.header), zmq_strerror(errno));
}

void WritePayload(void* socket, ByteSpan payload, void (*freed)(void* data, void* hint), void* hint,
                  int* error) {
  zmq_msg_t message;
  zmq_msg_init_data(&message, const_cast<std::byte*>(payload.data()), payload.size(), freed, hint);
  if (zmq_msg_send(&message, socket, ZMQ_DONTWAIT) >= 0) return;
  *error = errno;
  zmq_msg_close(&message);
}

}  // namespace bdn
