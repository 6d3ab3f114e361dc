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

// Who connects over shared memory, until he is known and admitted; nothing of his is mapped before.
// Used by one thread, the poller's, which brings frames besides: in one of its turns few connections are
// taken, and after some that came to nothing none for a while.
class ShmListener {
 public:
  // One that was let in. `key` is what he has shown; none where anybody may connect.
  struct Guest {
    FileDescriptor socket;
    PublicKey key;
    std::shared_ptr<SharedMemory> mine;
    std::shared_ptr<SharedMemory> peers;
  };

  // All are borrowed.
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

  // Of ListenAt.
  void Add(ShmListeningSocket socket);
  // From now on these may connect; those who wait for it are let in or refused.
  void SetAdmission(Admission admission);
  bool Admits(const PublicKey& key) const;
  void Close();

  // When OnTime has something to do next.
  absl::Time NextTime() const;
  void OnTime(absl::Time now);

 private:
  struct Newcomer {
    FileDescriptor socket;
    absl::Time deadline;
    std::optional<ShmHello> hello;
    FileDescriptor control;  // of his, with the hello
  };
  using Place = std::list<Newcomer>::iterator;

  void Watch(int socket);
  void Accept(int socket);
  // No connection is taken until `accept_at_`.
  void Rest();
  void OnPacket(Place newcomer);
  void LetIn();
  bool MayCome(const ShmHello& hello) const;
  void Welcome(Place newcomer);
  void Refuse(Place newcomer);

  const Owner owner_;
  std::vector<ShmListeningSocket> sockets_;
  absl::Time accept_at_ = absl::InfiniteFuture();  // again, where it rests
  int refusals_ = 0;                               // since it rested
  std::list<Newcomer> newcomers_;
  std::optional<Admission> admission_;
};

}  // namespace bdn

#endif  // BANDONEON_COMMON_TRANSPORT_SHM_SHM_LISTENER_H_
