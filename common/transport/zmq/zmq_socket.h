#ifndef BANDONEON_COMMON_TRANSPORT_ZMQ_ZMQ_SOCKET_H_
#define BANDONEON_COMMON_TRANSPORT_ZMQ_ZMQ_SOCKET_H_

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/transport/transport.h"
#include "common/transport/zmq/zmq_address.h"
#include "common/transport/zmq/zmq_keys.h"
#include "common/transport/zmq/zmq_transport.h"

namespace bdn {

// Functions that open a socket of ZeroMQ, and read frames from it and write them to it. Each socket
// is used by one thread at a time, and a full fence lies between two threads.

// Frames read from one socket before the others get their turn.
inline constexpr int kReceiveBatch = 64;

// Makes a socket drop unsent frames when it is closed, which must follow.
void DropUnsent(void* socket);
// A connector's knowledge of the listener at one endpoint.
struct PeerSecurity {
  LinkSecurity security = LinkSecurity::kOpen;
  PublicKey key;       // the listener's, where it is kEncrypted
  std::string secret;  // shown where it is kAuthenticated
};

// Open a socket that is to listen at `address`, or to connect to it. The caller binds or connects
// the socket, and closes it. ResourceExhausted: the context has no more sockets. Unimplemented:
// libzmq cannot listen with this security. InvalidArgument: a connector lacks the listener's key or
// the secret.
absl::StatusOr<void*> OpenListener(void* context, const ZmqOptions& options,
                                   const ZmqAddress& address, LinkSecurity security,
                                   const KeyPair& keys);
absl::StatusOr<void*> OpenConnector(void* context, const ZmqOptions& options,
                                    const ZmqAddress& address, const PeerSecurity& peer,
                                    const KeyPair& keys);
// Opens the socket on which a listener tells of its connections. The caller closes it.
absl::StatusOr<void*> OpenMonitor(void* context, void* listener);

// An event of a listener's connections.
struct MonitorEvent {
  enum class Kind { kAccepted, kClosed };
  Kind kind;
  int value;  // the descriptor
};
// Reads the next event; nothing when there is none.
std::optional<MonitorEvent> ReadMonitor(void* monitor);

// The connection on which a frame came.
struct FrameOrigin {
  int fd = -1;
  PublicKey key;  // none where the listener is kOpen
};

// The outcome of ReadFrame.
enum class ReadResult { kNothing, kFrame, kNoFrame, kTooManyParts };

// Reads the first part of a listener's message, ZeroMQ's name for the connection. Returns false
// when there is no message.
bool ReadPeerName(void* listener, std::string* name);
// Reads the rest of a listener's message, or a connector's whole one, whatever it contains.
// `origin` may be null.
ReadResult ReadFrame(void* socket, Frame* frame, FrameOrigin* origin);

// Writes a frame's header, to `peer` of a listener, or with null to a connector's listener. The
// payload is to follow, unless it is empty. Unavailable: nobody is there; ResourceExhausted: too
// many frames wait.
absl::Status WriteHeader(void* socket, const std::string* peer, const Frame& frame);
// Writes a payload. `freed` runs once, on any thread, when the payload is no longer read. Where it
// cannot be sent `error` is set to errno before that.
void WritePayload(void* socket, ByteSpan payload, void (*freed)(void* data, void* hint), void* hint,
                  int* error);

}  // namespace bdn

#endif  // BANDONEON_COMMON_TRANSPORT_ZMQ_ZMQ_SOCKET_H_
