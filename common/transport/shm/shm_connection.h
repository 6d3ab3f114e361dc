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

// The way of frames to one peer over shared memory: at once into the ring of its channel, and while
// that is full, or there is none, into a queue in front of it. Thread-safe.
class ShmConnection {
 public:
  // How a send ended.
  struct Done {
    Transport::SendDone done;
    absl::Status status;
  };
  // All are borrowed.
  struct Owner {
    const ShmOptions* options;
    ShmCopies* copies;
    TransportCounters* counters;
  };

  // A connector's frames wait without bound while it is not connected: the layers above bound them.
  ShmConnection(Owner owner, ConnectionId id, bool is_connector)
      : owner_(owner), id_(id), is_connector_(is_connector) {}
  ShmConnection(const ShmConnection&) = delete;
  ShmConnection& operator=(const ShmConnection&) = delete;

  ConnectionId id() const { return id_; }
  bool is_connector() const { return is_connector_; }

  struct Sent {
    bool waits = false;   // `done` was taken, and is told by a later Flush or Close
    absl::Status status;  // else how it ended
    std::shared_ptr<ShmChannel> broken{};  // its peer breaks the rules
  };
  // Takes `frame`, and `done` where it must wait.
  Sent Send(Frame frame, Transport::SendDone* done);

  struct Flushed {
    std::vector<Done> done;
    bool is_stuck = false;  // something waits, for memory or for the peer to release places
  };
  // Sends what waits, as far as it can be now.
  Flushed Flush();

  // Null while it is not connected.
  std::shared_ptr<ShmChannel> channel() const;
  void Connect(std::shared_ptr<ShmChannel> channel);
  // Takes the channel away; what waits goes on waiting for the next.
  std::shared_ptr<ShmChannel> Disconnect();
  // For good: what is sent from now on is Unavailable, as is what waited.
  struct Closed {
    std::shared_ptr<ShmChannel> channel;
    std::vector<Done> done;
  };
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
