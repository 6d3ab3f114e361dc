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

// One end of a connection between two processes of one machine that share memory. Frames go both
// ways: each end writes to memory of its own alone and reads the other's. Nothing that the peer
// wrote is believed further than it was checked on a copy of it. Payloads are handed over in place,
// and may change while they are read (Frame::is_lent).
//
// A payload that was sent is kept until the peer has released it, and longer than the socket lives
// where that ends first. The socket wakes an end that sleeps, and carries descriptors.
//
// Sending and the release of payloads are thread-safe; one thread receives and sleeps.
class ShmChannel : public std::enable_shared_from_this<ShmChannel> {
 public:
  static absl::StatusOr<std::shared_ptr<SharedMemory>> MakeControl() {
    return SharedMemory::Create("bandoneon-control", sizeof(ShmControl));
  }
  // Makes an end. `mine` was made by MakeControl, and `peers` by the MakeControl of the peer.
  ShmChannel(FileDescriptor socket, std::shared_ptr<SharedMemory> mine,
             std::shared_ptr<SharedMemory> peers, std::shared_ptr<ShmArena> arena);
  ShmChannel(const ShmChannel&) = delete;
  ShmChannel& operator=(const ShmChannel&) = delete;

  int socket() const { return socket_.get(); }

  // ---- Sending. Thread-safe.

  enum class SendResult {
    kSent,  // the payload is kept until the peer has read it
    // Later: on the peer's wake for a release, or when its socket takes packets again.
    kFull,
    kBroken,  // the peer is gone, or breaks the rules
  };
  // Publishes a frame. REQUIRES: the payload is empty or in the arena.
  SendResult Send(const Frame& frame);
  // Drops the payloads that the peer has released. Returns false where the peer breaks the rules.
  bool Reap();
  // Tells the peer that no more frames come from here, and that it is done once every payload that
  // is lent to us now has been given back.
  void SayClosing();
  // Returns whether the peer may still read what it was sent: it has not released all of it nor
  // said that it is done, and its process lives.
  bool PeerMayRead();

  // ---- Receiving. By one thread.

  enum class ReceiveResult {
    kFrame,
    kNothing,
    kMalformed,     // not a frame; it is skipped
    kNeedsSegment,  // its segment comes by the socket; the frame stays
    kBroken,        // the peer breaks the rules
  };
  ReceiveResult Receive(Frame* frame);
  // Maps the peer's next segment. InvalidArgument: it is out of order, too large, or not sealed.
  // ResourceExhausted: the system cannot map it.
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
  void SayDone();

  const FileDescriptor socket_;
  const std::shared_ptr<SharedMemory> mine_;
  const std::shared_ptr<SharedMemory> peers_;
  const std::shared_ptr<ShmArena> arena_;
  // The peer's `sleeps` when we last woke it: one wake for each sleep is enough. Publishes nothing
  // else.
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

  uint64_t received_ = 0;                                // used by the receiving thread alone
  std::vector<std::shared_ptr<SharedMemory>> segments_;  // used by the receiving thread alone

  Mutex release_mu_;
  uint64_t released_ ABSL_GUARDED_BY(release_mu_) = 0;
  int lent_ ABSL_GUARDED_BY(release_mu_) = 0;
  bool is_closing_ ABSL_GUARDED_BY(release_mu_) = false;
};

}  // namespace bdn

#endif  // BANDONEON_COMMON_TRANSPORT_SHM_SHM_CHANNEL_H_
