#include "server/waiting_frames.h"

namespace bdn {
namespace {

// The memory of a queue entry and a header.
constexpr uint64_t kFrameBytes = 512;
// A transport may lend a small payload out of a block of this size, which the payload keeps from
// being freed.
constexpr uint64_t kBlockBytes = 8192;

}  // namespace

uint64_t WaitingFrames::Add(NodeId node, const Frame& frame) {
  uint64_t bytes = kFrameBytes;
  if (!frame.payload.empty()) bytes += kBlockBytes + frame.payload.size();
  MutexLock lock(&mu_);
  uint64_t& waiting = bytes_[node];
  // The first frame always fits, or a frame longer than the limit could never be handled.
  if (waiting > 0 && waiting + bytes > max_bytes_) {
    ++dropped_;
    return 0;
  }
  waiting += bytes;
  return bytes;
}

void WaitingFrames::Remove(NodeId node, uint64_t bytes) {
  MutexLock lock(&mu_);
  const auto found = bytes_.find(node);
  found->second -= bytes;
  if (found->second == 0) bytes_.erase(found);
}

uint64_t WaitingFrames::dropped() const {
  MutexLock lock(&mu_);
  return dropped_;
}

}  // namespace bdn
