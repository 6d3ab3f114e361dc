#ifndef BANDONEON_SERVER_WAITING_FRAMES_H_
#define BANDONEON_SERVER_WAITING_FRAMES_H_

#include <cstdint>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "common/base/mutex.h"
#include "common/cluster/membership.h"
#include "common/wire/frame.h"

namespace bdn {

// A count, for each worker, of the bytes of received frames that no shard has handled yet, with a
// limit for each worker. A frame for which there is no room is dropped as if the network had lost
// it: its worker probes for it, and sends it again. Thread-safe.
class WaitingFrames {
 public:
  explicit WaitingFrames(uint64_t max_bytes) : max_bytes_(max_bytes) {}

  // Counts a frame of a worker and returns the bytes that it counts as; 0 if there is no room for
  // it. A worker's only frame always has room.
  uint64_t Add(NodeId node, const Frame& frame);
  // Counts a frame as handled; `bytes` is what Add returned for it.
  void Remove(NodeId node, uint64_t bytes);
  uint64_t dropped() const;

 private:
  const uint64_t max_bytes_;
  mutable Mutex mu_;
  absl::flat_hash_map<NodeId, uint64_t> bytes_ ABSL_GUARDED_BY(mu_);  // of workers that have any
  uint64_t dropped_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace bdn

#endif  // BANDONEON_SERVER_WAITING_FRAMES_H_
