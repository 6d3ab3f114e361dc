#ifndef BANDONEON_COMMON_TRANSPORT_SHM_SHM_CONNECTION_H_
#define BANDONEON_COMMON_TRANSPORT_SHM_SHM_CONNECTION_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "common/base/mutex.h"
#include "common/transport/shm/shm_channel.h"
#include "common/transport/shm/shm_copies.h"
#include "common/transport/shm/shm_transport.h"
#include "common/transport/transport_counters.h"

namespace bdn {

// One peer's connection as senders see it: a frame goes at once into the ring of the channel, or
// while the ring is full, or there is no channel, into a queue in front of it. Thread-safe.
class ShmConnection {
 public:
  // A send that has ended: its callback, not yet run, and its status.
  struct Done {
    Transport::SendDone done;
    absl::Status status;
  };
  // The parts of the transport that a connection uses. All are borrowed.
  struct Owner {
    const ShmOptions* options;
    ShmCopies* copies;
    TransportCounters* counters;
  };

  // Makes a connection without a channel. A connector's frames wait without bound while it is not
  // connected: the layers above bound them.
  ShmConnection(Owner owner, ConnectionId id, bool is_connector)
      : owner_(owner), id_(id), is_connector_(is_connector) {}
  ShmConnection(const ShmConnection&) = delete;
  ShmConnection& operator=(const ShmConnection&) = delete;

  ConnectionId id() const { return id_; }
  bool is_connector() const { return is_connector_; }

  // The outcome of Send.
  struct Sent {
    bool waits = false;                    // `done` was taken; a later Flush or Close returns it
    absl::Status status;                   // otherwise the status of the send
    std::shared_ptr<ShmChannel> broken{};  // set where its peer breaks the rules
  };
  // Sends `frame`, and takes `done` where the frame must wait. The caller runs `done` otherwise.
  Sent Send(Frame frame, Transport::SendDone* done);

  // The outcome of Flush.
  struct Flushed {
    std::vector<Done> done;
    bool is_stuck = false;  // frames wait for memory, or for the peer to release slots
  };
  // Sends waiting frames, in order, as far as it can be done now.
  Flushed Flush();

  // Returns the channel; null while there is no connection.
  std::shared_ptr<ShmChannel> channel() const;
  void Connect(std::shared_ptr<ShmChannel> channel);
  // Takes the channel away and returns it. Waiting frames stay for the next channel.
  std::shared_ptr<ShmChannel> Disconnect();
  // The outcome of Close.
  struct Closed {
    std::shared_ptr<ShmChannel> channel;
    std::vector<Done> done;
  };
  // Closes the connection for good: frames that wait, and those sent from now on, end in
  // Unavailable.
  Closed Close();

 private:
  struct Outgoing {
    Frame frame;
    Transport::SendDone done;
  };
  enum class TryResult { kSent, kWait, kBroken };
  TryResult TrySend(Frame* frame) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status CheckMayWait(uint64_t bytes) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status Gone() const;
  absl::Status Broken() const;

  const Owner owner_;
  const ConnectionId id_;
  const bool is_connector_;

  mutable Mutex mu_;
  std::shared_ptr<ShmChannel> channel_ ABSL_GUARDED_BY(mu_);
  std::deque<Outgoing> waiting_ ABSL_GUARDED_BY(mu_);
  uint64_t waiting_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  bool is_gone_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace bdn

#endif  // BANDONEON_COMMON_TRANSPORT_SHM_SHM_CONNECTION_H_
