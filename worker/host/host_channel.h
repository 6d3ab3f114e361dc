#ifndef BANDONEON_WORKER_HOST_HOST_CHANNEL_H_
#define BANDONEON_WORKER_HOST_HOST_CHANNEL_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/bytes.h"
#include "common/base/file_descriptor.h"
#include "common/base/mutex.h"
#include "common/transport/shm/shared_memory.h"
#include "common/transport/shm/shm_arena.h"

namespace google::protobuf {
class MessageLite;
}

namespace bdn {

// Where bytes lie in a segment of the sender's.
struct HostPlace {
  uint32_t segment = 0;
  uint64_t offset = 0;
  uint64_t bytes = 0;
};

// One end of what a process and its host's daemon have with each other: messages over a stream socket
// that does not block, and memory. Each end writes to an arena of its own, whose segments the other
// maps to read; so neither can spoil what the other works on, and nothing that a peer says of places
// is believed before it is checked.
class HostChannel {
 public:
  // Sends the other end `index` and `bytes` of a segment, as one of the messages.
  using EncodeSegment = std::string (*)(uint32_t index, uint64_t bytes);

  HostChannel(FileDescriptor socket, std::shared_ptr<ShmArena> arena, EncodeSegment encode_segment)
      : socket_(std::move(socket)), arena_(std::move(arena)), encode_segment_(encode_segment) {}
  HostChannel(const HostChannel&) = delete;
  HostChannel& operator=(const HostChannel&) = delete;

  int socket() const { return socket_.get(); }
  const std::shared_ptr<ShmArena>& arena() const { return arena_; }
  // The process id of the other end, as the kernel knows it; 0 where it does not.
  int peer_pid() const;

  // ---- Sending. Thread-safe.

  // Sends the message, behind those before it and the segments that the arena has gained; what the
  // socket takes no more goes by Flush. False: the other end is gone, or takes nothing.
  bool Send(const google::protobuf::MessageLite& message);
  // Sends what waits, as far as it can be now. False: as Send.
  bool Flush();
  bool has_waiting() const;
  // Where bytes of the arena lie; nothing where they are of other memory, or not aligned to 8.
  std::optional<HostPlace> Find(ByteSpan bytes) const;

  // ---- Receiving. By one thread.

  // The next message, if all of it is here. Unavailable: the other end is gone. InvalidArgument: it
  // does not keep to the rules.
  absl::StatusOr<std::optional<std::string>> Receive();
  // The peer's next segment, of which it has just told, with its descriptor.
  absl::Status AddSegment(uint32_t index, uint64_t bytes);
  // Bytes of the peer's, and what keeps them there. On any thread.
  struct Bytes {
    ByteSpan span;
    std::shared_ptr<SharedMemory> memory;
  };
  // InvalidArgument: the peer has no such place, or it is not aligned to 8 or not `bytes` long.
  absl::StatusOr<Bytes> Resolve(const HostPlace& place, uint64_t bytes) const;

 private:
  struct Outgoing {
    std::string bytes;
    int fd = -1;  // of the arena's
    size_t sent = 0;
  };
  bool FlushLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void QueueLocked(const std::string& message, int fd) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Reads what there is. Unavailable: the end.
  absl::Status Fill();

  const FileDescriptor socket_;
  const std::shared_ptr<ShmArena> arena_;
  const EncodeSegment encode_segment_;

  mutable Mutex mu_;
  std::deque<Outgoing> outgoing_ ABSL_GUARDED_BY(mu_);
  size_t outgoing_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  uint32_t segments_told_ ABSL_GUARDED_BY(mu_) = 0;
  bool is_broken_ ABSL_GUARDED_BY(mu_) = false;

  // The receiving thread's.
  std::string received_;
  size_t taken_ = 0;  // of `received_`
  std::deque<FileDescriptor> descriptors_;

  mutable Mutex segments_mu_;
  std::vector<std::shared_ptr<SharedMemory>> segments_ ABSL_GUARDED_BY(segments_mu_);
};

}  // namespace bdn

#endif  // BANDONEON_WORKER_HOST_HOST_CHANNEL_H_
