#ifndef BANDONEON_COMMON_TRANSPORT_TRANSPORT_H_
#define BANDONEON_COMMON_TRANSPORT_TRANSPORT_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/endpoint.h"
#include "common/base/link_security.h"
#include "common/base/memory_domain.h"
#include "common/wire/frame.h"

namespace bdn {

// The name of one connection to a peer. Each side gives its own, never twice in a transport's life.
// 0 is no connection.
using ConnectionId = uint64_t;

// Counts of a transport since it was made; the last three are of the present.
struct TransportStats {
  uint64_t frames_sent = 0;
  uint64_t frames_received = 0;
  uint64_t bytes_sent = 0;  // headers and payloads
  uint64_t bytes_received = 0;
  // Frames that were dropped because no header could be read, or because the payload did not have
  // the size that the header says.
  uint64_t frames_malformed = 0;
  uint64_t sends_failed = 0;
  // Connections to a listener of this transport:
  uint64_t connections_refused = 0;  // not admitted, or gone before their handshake was finished
  // Ended by us: the peer broke the rules, did not read, or is no longer admitted.
  uint64_t connections_cut = 0;
  // Now, and maybe still in their handshake (ZeroMQ: no frame has come on them).
  uint64_t connections_new = 0;
  uint64_t connections_open = 0;  // now: all others
  // Now waiting to be sent (over shared memory by connectors, too).
  uint64_t bytes_queued = 0;
};

// A listener as its connector knows it: its endpoints, its public key, and the secret to show to
// it.
struct Peer {
  std::vector<Endpoint> endpoints;  // the preferred one first
  PublicKey key;                    // the listener's, where an endpoint is kEncrypted
  std::string secret;               // shown where an endpoint is kAuthenticated
};

// The connectors that a listener admits, by the public keys that they show.
struct Admission {
  std::vector<PublicKey> keys;
  std::string secret;  // asked for as well where the listener is kAuthenticated
};

// The facts that a transport knows about the way of a connection.
struct ConnectionFacts {
  bool is_network = false;  // it may leave the machine
  // The least time that bytes took to the peer and back; 0 where it is not known.
  absl::Duration round_trip;
  // Bytes that the peer has acknowledged, and that have come from it, since the connection was made
  // last, with those of protocols below the frames; 0 where they are not counted.
  uint64_t bytes_sent = 0;
  uint64_t bytes_received = 0;
  // Likewise: bytes that were sent again, the time in which bytes were on their way or waited to go
  // out, and the part of that in which the peer had no room for more.
  uint64_t bytes_sent_again = 0;
  absl::Duration busy;
  absl::Duration held_back;
  // The time that bytes take to the peer and back now; 0 where it is not known.
  absl::Duration round_trip_now;
  // The bytes a second that the way carries, as the last bytes were acknowledged; 0 where the
  // sender gave it less than it carries, or nothing is known.
  uint64_t rate = 0;
};

// A carrier of whole frames between processes: each arrives at most once, and in any order. It does
// not send again what was lost, knows no membership, and never reads a payload. Thread-safe.
//
// Callbacks (FrameHandler, GoneHandler and SendDone) run on threads of the transport, never inside
// a call that registered or caused them, and never after Join() has returned. They must not block.
//
// No method has a default, so that a transport around another one cannot forget to forward a call;
// it derives from ForwardingTransport (forwarding.h).
class Transport {
 public:
  using FrameHandler = std::function<void(ConnectionId from, Frame frame)>;
  // Runs exactly once for each Send: with OK when the frame was handed over (which does not say
  // that it has arrived), with Unavailable when the connection is gone or the transport closed,
  // with another error where the frame was not taken. The payload is shared for as long as it is
  // read, and must not change.
  using SendDone = std::function<void(absl::Status status)>;

  virtual ~Transport() = default;

  // Runs when a connection of a listener has ended and all its frames were handed over. The
  // connection never comes back under this name.
  using GoneHandler = std::function<void(ConnectionId connection)>;

  // Sets the handlers. Must be called once, before Listen or Connect. `handler` gets every
  // well-formed frame; malformed ones are counted and dropped. `gone` may be null.
  virtual void Start(FrameHandler handler, GoneHandler gone = nullptr) = 0;

  // Accepts peers at `address` ("tcp://127.0.0.1:0", "ipc:///path", "loopback://name") and returns
  // every endpoint by which they may connect, the preferred one first, ports filled in.
  // AlreadyExists when the address is taken; InvalidArgument for a form that the transport does not
  // know; both name the address.
  virtual absl::StatusOr<std::vector<Endpoint>> Listen(const std::string& address) = 0;

  // Connects to a listener by the first of its endpoints that this transport can use. May return
  // before the listener exists: frames then wait or are lost. A listener that is not the expected
  // one, or does not admit us, counts as one that is not there. Unimplemented names the schemes
  // that the peer offers where this transport can use none of them.
  virtual absl::StatusOr<ConnectionId> Connect(const Peer& peer) = 0;
  // Ends a connection that Connect made, and frees what it holds. A frame not yet sent ends in
  // Unavailable or OK, and may still be read or not; a frame that has come may still be handed
  // over. A connection of a listener is left alone.
  virtual void Disconnect(ConnectionId connection) = 0;

  // Returns the public CURVE key that this transport shows to its peers; none where it never leaves
  // the process.
  virtual PublicKey public_key() const = 0;
  // Returns the security of the last Listen.
  virtual LinkSecurity security() const = 0;
  // Returns whether frames are best made with checksums, as they are where a connection may leave
  // the machine.
  virtual bool needs_checksums() const = 0;
  // Admits these connectors and no others from now on, and cuts the connections of others. Before
  // the first call nobody is admitted. A listener that is kOpen admits everybody, whatever is said
  // here.
  virtual void Admit(Admission admission) = 0;
  // Returns the public key of the peer of a listener's connection, as the listener has verified it:
  // with kEncrypted by its private half, with kAuthenticated by the job's secret. None where the
  // listener is kOpen, or the connection is gone.
  virtual PublicKey KeyOf(ConnectionId connection) const = 0;
  // Returns what is known of a connection. Nothing is known before a frame has come on it.
  virtual ConnectionFacts FactsOf(ConnectionId connection) const = 0;

  // Sends a frame, and takes it over. An unknown connection ends in NotFound. Where the transport
  // limits them, a payload that is too long ends in InvalidArgument, and a frame for which a
  // listener's queue has no room in ResourceExhausted.
  virtual void Send(ConnectionId to, Frame frame, SendDone done) = 0;

  // Returns the memory in which payloads to be sent are best made: a buffer of another memory is
  // sent as well, at the price of a copy.
  virtual std::shared_ptr<MemoryDomain> memory() = 0;

  virtual TransportStats stats() const = 0;

  // Stops at once: pending sends end in Unavailable. Idempotent.
  virtual void Close() = 0;
  // Waits, after Close, until the last callback has returned. Idempotent. The destructor does both.
  virtual void Join() = 0;
};

}  // namespace bdn

#endif  // BANDONEON_COMMON_TRANSPORT_TRANSPORT_H_
