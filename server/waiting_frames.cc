#include "server/waiting_frames.h"

namespace bdn {
namespace {

// Of the queue and of a header.
constexpr uint64_t kFrameBytes = 512;
// A transport may lend a small payload out of a block so large, which it pins.
constexpr uint64_t kBlockBytes = 8192;

}  // namespace

uint64_t WaitingFrames::Add(NodeId node, const Frame& frame) {
  uint64_t bytes = kFrameBytes;
  if (!frame.payload.empty()) bytes += kBlockBytes + frame.payload.size();
  MutexLock lock(&mu_);
  uint64_t& waiting = bytes_[node];
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
