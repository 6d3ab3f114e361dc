#ifndef BANDONEON_COMMON_TRANSPORT_SHM_SHM_CHANNEL_H_
#define BANDONEON_COMMON_TRANSPORT_SHM_SHM_CHANNEL_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "common/base/file_descriptor.h"
#include "common/base/mutex.h"
#include "common/transport/shm/shared_memory.h"
#include "common/transport/shm/shm_arena.h"
#include "common/transport/shm/shm_layout.h"
#include "common/wire/frame.h"

namespace bdn {

// Two processes of one host that share memory: frames both ways, each end writing to memory of its own
// alone and reading the other's. What the peer wrote is believed no further than it was checked on a
// copy of it; payloads are handed over where they are, and may change while they are read
// (Frame::is_lent).
//
// Payloads that were sent are kept until the peer has released them. The socket wakes an end that
// sleeps and carries descriptors; its end is the promise to read nothing any more.
class ShmChannel : public std::enable_shared_from_this<ShmChannel> {
 public:
  static absl::StatusOr<std::shared_ptr<SharedMemory>> MakeControl() {
    return SharedMemory::Create("bandoneon-control", sizeof(ShmControl));
  }
  // `mine` was made by MakeControl, as `peers` was by the peer.
  ShmChannel(FileDescriptor socket, std::shared_ptr<SharedMemory> mine,
             std::shared_ptr<SharedMemory> peers, std::shared_ptr<ShmArena> arena);
  ShmChannel(const ShmChannel&) = delete;
  ShmChannel& operator=(const ShmChannel&) = delete;

  int socket() const { return socket_.get(); }

  // ---- Sending. Thread-safe.

  enum class SendResult {
    kSent,    // its payload is kept until it was read
    kFull,    // later: the peer wakes us when it has released something, or takes packets again
    kBroken,  // the peer is gone, or does not keep to the rules
  };
  // REQUIRES: the payload is empty or of the arena.
  SendResult Send(const Frame& frame);
  // Lets go of what the peer has released. False: it does not keep to the rules.
  bool Reap();
  // No more frames will come, and nothing is lent once what is now has been given back.
  void SayClosing();

  // ---- Receiving. By one thread.

  enum class ReceiveResult {
    kFrame,
    kNothing,
    kMalformed,     // it was no frame, and is passed over
    kNeedsSegment,  // that comes by the socket; the frame stays
    kBroken,        // the peer does not keep to the rules
  };
  ReceiveResult Receive(Frame* frame);
  // A segment of the peer's, in its order.
  absl::Status AddSegment(const ShmSegment& segment, FileDescriptor fd);

  // ---- Sleeping. By the same thread: FallAsleep, then HasWork, and only if there is none wait.

  void FallAsleep();
  void WakeUp();
  bool HasWork() const;

 private:
  const ShmControl& peer() const { return *reinterpret_cast<ShmControl*>(peers_->data()); }
  ShmControl& own() const { return *reinterpret_cast<ShmControl*>(mine_->data()); }
  ShmFrame ReadFrame(uint64_t number) const;
  bool SendSegments(uint32_t last) ABSL_EXCLUSIVE_LOCKS_REQUIRED(send_mu_);
  bool ReapLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(send_mu_);
  void WakePeer();
  void Release(uint32_t token);

  const FileDescriptor socket_;
  const std::shared_ptr<SharedMemory> mine_;
  const std::shared_ptr<SharedMemory> peers_;
  const std::shared_ptr<ShmArena> arena_;
  // The peer's sleep that it was woken from last: once is enough.
  std::atomic<uint32_t> woken_from_{0};

  mutable Mutex send_mu_;
  uint64_t published_ ABSL_GUARDED_BY(send_mu_) = 0;
  uint64_t reaped_ ABSL_GUARDED_BY(send_mu_) = 0;
  uint32_t segments_sent_ ABSL_GUARDED_BY(send_mu_) = 0;
  std::vector<uint32_t> free_tokens_ ABSL_GUARDED_BY(send_mu_);
  struct InFlight {
    bool is_open = false;
    Buffer payload;
  };
  std::vector<InFlight> in_flight_ ABSL_GUARDED_BY(send_mu_);  // by token

  uint64_t received_ = 0;                                // the receiving thread's
  std::vector<std::shared_ptr<SharedMemory>> segments_;  // as well

  Mutex release_mu_;
  uint64_t released_ ABSL_GUARDED_BY(release_mu_) = 0;
  int lent_ ABSL_GUARDED_BY(release_mu_) = 0;
  bool is_closing_ ABSL_GUARDED_BY(release_mu_) = false;
};

}  // namespace bdn

#endif  // BANDONEON_COMMON_TRANSPORT_SHM_SHM_CHANNEL_H_
