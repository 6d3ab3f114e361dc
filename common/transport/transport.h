#ifndef BANDONEON_COMMON_TRANSPORT_TRANSPORT_H_
#define BANDONEON_COMMON_TRANSPORT_TRANSPORT_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/endpoint.h"
#include "common/base/link_security.h"
#include "common/base/memory_domain.h"
#include "common/wire/frame.h"

namespace bdn {

// One way to a peer, named by the side that uses it; never reused in a transport's life. 0 is none.
using ConnectionId = uint64_t;

struct TransportStats {
  uint64_t frames_sent = 0;
  uint64_t frames_received = 0;
  uint64_t bytes_sent = 0;  // headers and payloads
  uint64_t bytes_received = 0;
  // Dropped: no header could be read, or the payload's size was not the header's.
  uint64_t frames_malformed = 0;
  uint64_t sends_failed = 0;
  // Of a listener:
  uint64_t connections_refused = 0;  // were not admitted, or did not finish their handshake
  uint64_t connections_cut = 0;      // broke the rules, did not read, or are no longer admitted
  uint64_t connections_new = 0;      // now, on which no frame has come: maybe in their handshake
  uint64_t connections_open = 0;     // now, the others
  uint64_t bytes_queued = 0;         // now, to all of them
};

// The listener to which a connector connects: the ways to it, its key, and the secret to show.
struct Peer {
  std::vector<Endpoint> endpoints;  // the preferred one first
  PublicKey key;                    // the listener's, where an endpoint is kEncrypted
  std::string secret;               // what is shown where an endpoint is kAuthenticated
};

// Who may connect to a listener.
struct Admission {
  std::vector<PublicKey> keys;
  std::string secret;  // asked for besides where it is kAuthenticated
};

// Carries whole frames, at most once, unordered. It does not retry, knows no membership, and never
// reads a payload. Thread-safe.
//
// Callbacks (the frame handler and SendDone) run on threads of the transport, never inside a call
// that registered or caused them, and never after Join() returned. They must not block.
//
// No method has a default, so that a transport around another one cannot forget to forward a call; it
// derives from ForwardingTransport (forwarding.h).
class Transport {
 public:
  using FrameHandler = std::function<void(ConnectionId from, Frame frame)>;
  // Runs exactly once for each Send: with OK when the frame was handed over (which is not when it
  // arrived), with Unavailable when the connection is gone or the transport closed. The payload is
  // shared for as long as it is read, and must not change.
  using SendDone = std::function<void(absl::Status status)>;

  virtual ~Transport() = default;

  // A connection of a listener has ended, and all its frames were handed over: it never comes back
  // under this name.
  using GoneHandler = std::function<void(ConnectionId connection)>;

  // Must be called once, before Listen or Connect. `handler` gets every well-formed frame;
  // malformed ones are counted and dropped. `gone` may be null.
  virtual void Start(FrameHandler handler, GoneHandler gone = nullptr) = 0;

  // Accepts peers at `address` ("tcp://127.0.0.1:0", "ipc:///path", "loopback://name") and returns
  // every way in which they may connect, the preferred one first, ports filled in. AlreadyExists
  // when the address is taken; InvalidArgument for a form it does not know; both name the address.
  virtual absl::StatusOr<std::vector<Endpoint>> Listen(const std::string& address) = 0;

  // Connects to a listener, by the first of its ways that this transport can use. May return before
  // the peer exists: frames wait or are lost. A listener that is not who it should be, or does not
  // admit us, is as one that is not there. Unimplemented names the schemes that it met, where it can
  // use none of them.
  virtual absl::StatusOr<ConnectionId> Connect(const Peer& peer) = 0;
  // Ends a connection that Connect made, and gives back what it takes. What was not sent yet ends in
  // Unavailable or OK, as whether it is read any more; what has come may still be handed over. Any
  // other is left alone.
  virtual void Disconnect(ConnectionId connection) = 0;

  // The public half of the key pair that this transport made for itself; none where it never leaves
  // the process.
  virtual PublicKey public_key() const = 0;
  // How the last Listen came to listen.
  virtual LinkSecurity security() const = 0;
  // Whether frames are best made with checksums: some connection leaves the host.
  virtual bool needs_checksums() const = 0;
  // From now on these and no others may connect; connections of others are cut. Before the first
  // call nobody may. A listener that is kOpen admits everybody whatever is said here.
  virtual void Admit(Admission admission) = 0;
  // Whose connection this is, as the listener has verified: with kEncrypted by the private half,
  // with kAuthenticated by the job's secret. None where it is kOpen, or gone.
  virtual PublicKey KeyOf(ConnectionId connection) const = 0;

  // Takes over the frame. An unknown connection ends in
  // NotFound.
  virtual void Send(ConnectionId to, Frame frame, SendDone done) = 0;

  // What payloads that are to be sent are best made of: buffers of another memory are sent as well,
  // at the price of a copy.
  virtual std::shared_ptr<MemoryDomain> memory() = 0;

  virtual TransportStats stats() const = 0;

  // Stops at once: pending sends end in Unavailable. Idempotent.
  virtual void Close() = 0;
  // After Close: waits until the last callback has returned. Idempotent. The destructor does both.
  virtual void Join() = 0;
};

}  // namespace bdn

#endif  // BANDONEON_COMMON_TRANSPORT_TRANSPORT_H_
