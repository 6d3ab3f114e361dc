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

// One socket of ZeroMQ: how it is opened, and frames read from it and written to it. Each socket is
// used by one thread at a time; a full fence lies between two.

// Frames taken from one socket before the others get their turn.
inline constexpr int kReceiveBatch = 64;

// Of a socket that is then closed: what was not sent is dropped at once.
void DropUnsent(void* socket);
// What a connector knows of the listener at one endpoint.
struct PeerSecurity {
  LinkSecurity security = LinkSecurity::kOpen;
  PublicKey key;       // the listener's, where it is kEncrypted
  std::string secret;  // what is shown where it is kAuthenticated
};

// Listens at `address`, or is to be connected. The caller closes it.
absl::StatusOr<void*> OpenListener(void* context, const ZmqOptions& options,
                                   const ZmqAddress& address, LinkSecurity security,
                                   const KeyPair& keys);
absl::StatusOr<void*> OpenConnector(void* context, const ZmqOptions& options,
                                    const ZmqAddress& address, const PeerSecurity& peer,
                                    const KeyPair& keys);
// The other end of what a listener tells of its connections. The caller closes it.
absl::StatusOr<void*> OpenMonitor(void* context, void* listener);

// What the connections of a listener do.
struct MonitorEvent {
  enum class Kind { kAccepted, kClosed };
  Kind kind;
  int value;  // the descriptor; of a failure, errno
};
// Nothing when there is no more.
std::optional<MonitorEvent> ReadMonitor(void* monitor);

// Whose connection a frame came on.
struct FrameOrigin {
  int fd = -1;
  PublicKey key;  // none where nothing was asked
};

enum class ReadResult { kNothing, kFrame, kNoFrame, kTooManyParts };

// Reads what begins each message of a listener: ZeroMQ's name for the connection. False when there
// is no message.
bool ReadPeerName(void* listener, std::string* name);
// Reads the rest of a listener's message, or a connector's whole one, whatever it is. `origin` may
// be null.
ReadResult ReadFrame(void* socket, Frame* frame, FrameOrigin* origin);

// Begins a frame: to `peer` of a listener, or where it is null by a connector. Its payload is to
// follow, unless it has none. Unavailable: nobody is there; ResourceExhausted: too many wait.
absl::Status WriteHeader(void* socket, const std::string* peer, const Frame& frame);
// `freed` runs once, on any thread, when the payload is no longer read. Where it could not be sent
// `error` is set before, to errno.
void WritePayload(void* socket, ByteSpan payload, void (*freed)(void* data, void* hint), void* hint,
                  int* error);

}  // namespace bdn

#endif  // BANDONEON_COMMON_TRANSPORT_ZMQ_ZMQ_SOCKET_H_
