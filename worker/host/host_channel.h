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

// The place of bytes in one of the sender's segments of shared memory.
struct HostPlace {
  uint32_t segment = 0;
  uint64_t offset = 0;
  uint64_t bytes = 0;
};

// One end of the connection between a process and its host daemon: messages over a stream socket
// that does not block, and shared memory. Each end writes to an arena of its own, whose segments
// the other end maps for reading. So neither end can change the memory that the other works in, and
// a place that a peer sends is checked before it is used.
class HostChannel {
 public:
  // Encodes the message that tells the other end `index` and `bytes` of a segment.
  using EncodeSegment = std::string (*)(uint32_t index, uint64_t bytes);

  HostChannel(FileDescriptor socket, std::shared_ptr<ShmArena> arena, EncodeSegment encode_segment)
      : socket_(std::move(socket)), arena_(std::move(arena)), encode_segment_(encode_segment) {}
  HostChannel(const HostChannel&) = delete;
  HostChannel& operator=(const HostChannel&) = delete;

  int socket() const { return socket_.get(); }
  const std::shared_ptr<ShmArena>& arena() const { return arena_; }
  // Returns the process id of the other end as the kernel knows it, or 0.
  int peer_pid() const;

  // ---- Sending. Thread-safe.

  // Sends a message, after earlier messages and after the segments that the arena has gained. Flush
  // sends the part that the socket does not take now. Returns false if the other end is gone, or
  // reads nothing.
  bool Send(const google::protobuf::MessageLite& message);
  // Sends waiting bytes, as many as the socket takes now. Returns false as Send does.
  bool Flush();
  bool has_waiting() const;
  // Returns the place of bytes of the arena, or nothing if they lie in other memory or are not
  // aligned to 8.
  std::optional<HostPlace> Find(ByteSpan bytes) const;

  // ---- Receiving. By one thread.

  // Returns the next message, if all of it has come. Unavailable: the other end is gone.
  // InvalidArgument: it breaks the protocol.
  absl::StatusOr<std::optional<std::string>> Receive();
  // Maps the peer's next segment, which a message has just announced, by its descriptor.
  absl::Status AddSegment(uint32_t index, uint64_t bytes);
  // Bytes of the peer's memory, and the mapping that keeps them. Usable on any thread.
  struct Bytes {
    ByteSpan span;
    std::shared_ptr<SharedMemory> memory;
  };
  // Returns the bytes of a place. InvalidArgument: the peer has no such place, or it is not aligned
  // to 8 or not `bytes` long.
  absl::StatusOr<Bytes> Resolve(const HostPlace& place, uint64_t bytes) const;

 private:
  struct Outgoing {
    std::string bytes;
    int fd = -1;  // of a segment of the arena, which stays its owner; -1: none
    size_t sent = 0;
  };
  bool FlushLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void QueueLocked(const std::string& message, int fd) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Reads the bytes that are there. Unavailable: the connection has ended.
  absl::Status Fill();

  const FileDescriptor socket_;
  const std::shared_ptr<ShmArena> arena_;
  const EncodeSegment encode_segment_;

  mutable Mutex mu_;
  std::deque<Outgoing> outgoing_ ABSL_GUARDED_BY(mu_);
  size_t outgoing_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  uint32_t segments_told_ ABSL_GUARDED_BY(mu_) = 0;
  bool is_broken_ ABSL_GUARDED_BY(mu_) = false;

  // Used by the receiving thread alone.
  std::string received_;
  size_t taken_ = 0;  // bytes of `received_` already returned
  std::deque<FileDescriptor> descriptors_;

  mutable Mutex segments_mu_;
  std::vector<std::shared_ptr<SharedMemory>> segments_ ABSL_GUARDED_BY(segments_mu_);
};

}  // namespace bdn

#endif  // BANDONEON_WORKER_HOST_HOST_CHANNEL_H_
