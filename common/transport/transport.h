#ifndef BANDONEON_COMMON_TRANSPORT_TRANSPORT_H_
#define BANDONEON_COMMON_TRANSPORT_TRANSPORT_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
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
};

// Carries whole frames, at most once, unordered. It does not retry, knows no membership, and never
// reads a payload. Thread-safe.
//
// Callbacks (the frame handler and SendDone) run on threads of the transport, never inside a call
// that registered or caused them, and never after Join() returned. They must not block.
class Transport {
 public:
  using FrameHandler = std::function<void(ConnectionId from, Frame frame)>;
  // Runs exactly once for each Send: with OK when the payload is no longer read (which is not when
  // it arrived), with Unavailable when the connection is gone or the transport closed.
  using SendDone = std::function<void(absl::Status status)>;

  virtual ~Transport() = default;

  // Must be called once, before Listen or Connect. `handler` gets every well-formed frame;
  // malformed ones are counted and dropped.
  virtual void Start(FrameHandler handler) = 0;

  // Accepts peers at `address` ("tcp://127.0.0.1:0", "ipc:///path", "loopback://name") and returns
  // the address to connect to, ports filled in. AlreadyExists when it is taken; InvalidArgument for
  // a form it does not know; both name the address.
  virtual absl::StatusOr<std::string> Listen(const std::string& address) = 0;

  // A way to the listener at `address`. May return before the peer exists: frames wait or are lost.
  virtual absl::StatusOr<ConnectionId> Connect(const std::string& address) = 0;

  // Takes over the frame; the payload is shared until `done`. An unknown connection ends in
  // NotFound.
  virtual void Send(ConnectionId to, Frame frame, SendDone done) = 0;

  // What payloads that are to be sent are best made of: buffers of another memory are sent as well,
  // at the price of a copy.
  virtual std::shared_ptr<MemoryDomain> memory() { return HostMemory(); }

  virtual TransportStats stats() const = 0;

  // Stops at once: pending sends end in Unavailable. Idempotent.
  virtual void Close() = 0;
  // After Close: waits until the last callback has returned. Idempotent. The destructor does both.
  virtual void Join() = 0;
};

}  // namespace bdn

#endif  // BANDONEON_COMMON_TRANSPORT_TRANSPORT_H_
