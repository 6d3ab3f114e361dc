#ifndef BANDONEON_COMMON_TRANSPORT_SHM_SHM_LISTENER_H_
#define BANDONEON_COMMON_TRANSPORT_SHM_SHM_LISTENER_H_

#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/file_descriptor.h"
#include "common/base/log_limit.h"
#include "common/transport/shm/fd_poller.h"
#include "common/transport/shm/shared_memory.h"
#include "common/transport/shm/shm_layout.h"
#include "common/transport/shm/shm_socket.h"
#include "common/transport/shm/shm_transport.h"
#include "common/transport/transport_counters.h"

namespace bdn {

// The handshakes of new connections over shared memory. No memory of a peer is mapped before the
// peer is authenticated and admitted. Not thread-safe: used by the poller's thread alone, which
// brings frames besides. Therefore at most 16 connections are accepted in one of its turns, and for
// 50 ms none after 16 that came to nothing, or where the process has no descriptor for one.
class ShmListener {
 public:
  // A connection that was admitted. `key` is the CURVE key that the peer has shown; none where
  // anybody may connect.
  struct Guest {
    FileDescriptor socket;
    PublicKey key;
    std::shared_ptr<SharedMemory> mine;
    std::shared_ptr<SharedMemory> peers;
  };

  // The parts of the transport that a listener uses. All are borrowed.
  struct Owner {
    const ShmOptions* options;
    const Clock* clock;
    FdPoller* poller;
    TransportCounters* counters;
    LimitedLog* log;
    std::function<void(Guest guest)> on_guest;
  };

  explicit ShmListener(Owner owner) : owner_(std::move(owner)) {}
  ShmListener(const ShmListener&) = delete;
  ShmListener& operator=(const ShmListener&) = delete;

  // Accepts connections at a socket of ListenAt.
  void Add(ShmListeningSocket socket);
  // Sets the peers that may connect from now on; connections that wait for this are admitted or
  // refused.
  void SetAdmission(Admission admission);
  bool Admits(const PublicKey& key) const;
  void Close();

  // Returns the time from which OnTime has something to do.
  absl::Time NextTime() const;
  // Ends handshakes that took too long, and accepts connections again after a rest.
  void OnTime(absl::Time now);

 private:
  // A connection in its handshake.
  struct Newcomer {
    FileDescriptor socket;
    absl::Time deadline;
    std::optional<ShmHello> hello;
    FileDescriptor control;  // the peer's ShmControl, not yet mapped; it comes with the hello
  };
  using Place = std::list<Newcomer>::iterator;

  void Watch(int socket);
  void Accept(int socket);
  // Accepts no connection until `accept_at_`.
  void Rest();
  void OnPacket(Place newcomer);
  void LetIn();
  bool MayCome(const ShmHello& hello) const;
  void Welcome(Place newcomer);
  void Refuse(Place newcomer);

  const Owner owner_;
  std::vector<ShmListeningSocket> sockets_;
  // When the listener rests: the time to accept again.
  absl::Time accept_at_ = absl::InfiniteFuture();
  int refusals_ = 0;  // since the last rest
  std::list<Newcomer> newcomers_;
  std::optional<Admission> admission_;
};

}  // namespace bdn

#endif  // BANDONEON_COMMON_TRANSPORT_SHM_SHM_LISTENER_H_
