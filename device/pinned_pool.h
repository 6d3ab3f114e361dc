#ifndef BANDONEON_DEVICE_PINNED_POOL_H_
#define BANDONEON_DEVICE_PINNED_POOL_H_

#include <cstddef>
#include <map>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/bytes.h"
#include "common/base/mutex.h"
#include "device/compute_device.h"

namespace bdn {

// A pool of pinned host memory of a device, at most `max_bytes` of it. Blocks have sizes of powers
// of two, and are kept when they are given back; unused ones are freed where blocks of another size
// need the room. Thread-safe; never waits for a block to be given back.
class PinnedPool {
 public:
  // A block of the pool, which is given back when the object ends.
  class Block {
   public:
    Block(PinnedPool* pool, MutableByteSpan bytes) : pool_(pool), bytes_(bytes) {}
    ~Block() {
      if (pool_ != nullptr) pool_->GiveBack(bytes_);
    }
    Block(Block&& other) noexcept
        : pool_(std::exchange(other.pool_, nullptr)), bytes_(other.bytes_) {}
    Block& operator=(Block&&) = delete;

    // Returns the block's memory, which is at least as long as was asked for.
    MutableByteSpan bytes() const { return bytes_; }

   private:
    PinnedPool* pool_;
    MutableByteSpan bytes_;
  };

  // REQUIRES: `device` outlives the pool, and the pool its blocks.
  PinnedPool(ComputeDevice& device, size_t max_bytes) : device_(device), max_bytes_(max_bytes) {}
  ~PinnedPool();
  PinnedPool(const PinnedPool&) = delete;
  PinnedPool& operator=(const PinnedPool&) = delete;

  // Returns a block of at least `bytes` bytes. Returns ResourceExhausted where the blocks in use
  // leave no room for it, or the host has no more.
  absl::StatusOr<Block> Take(size_t bytes);
  // Returns the bytes of all blocks, in use or not.
  size_t held_bytes() const;

 private:
  void GiveBack(MutableByteSpan bytes);
  // Frees unused blocks, the largest first, until `bytes` fit or none is left.
  void MakeRoom(size_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  ComputeDevice& device_;
  const size_t max_bytes_;

  mutable Mutex mu_;
  size_t held_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  // The unused blocks, by size.
  std::map<size_t, std::vector<std::byte*>> free_ ABSL_GUARDED_BY(mu_);
};

}  // namespace bdn

#endif  // BANDONEON_DEVICE_PINNED_POOL_H_
