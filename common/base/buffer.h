#ifndef BANDONEON_COMMON_BASE_BUFFER_H_
#define BANDONEON_COMMON_BASE_BUFFER_H_

#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "common/base/bytes.h"
#include "common/base/memory_domain.h"
#include "common/base/mutex.h"

namespace bdn {

// A reference-counted block of bytes. A copy shares the block; the last copy that is destroyed
// returns the block to its origin. Thread-safe as a shared_ptr is: distinct copies may be used by
// distinct threads. A block is written to by its maker before it is shared, or by a holder that no
// longer shares it (IsUnique).
class Buffer {
 public:
  Buffer() = default;  // empty: data() is null, size() is 0

  // Returns a fresh block from the heap, 64-byte aligned, whose contents are unspecified.
  static Buffer Allocate(size_t size);
  static Buffer CopyOf(ByteSpan bytes);
  // Returns a buffer over memory that somebody else owns. `release` runs once, on whatever thread
  // drops the last copy.
  static Buffer Wrap(MutableByteSpan bytes, std::function<void()> release);

  std::byte* data() const { return data_; }
  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  ByteSpan span() const { return {data_, size_}; }
  MutableByteSpan mutable_span() const { return {data_, size_}; }

  // Returns the first `size` bytes, sharing the block. REQUIRES: size <= this->size().
  Buffer Prefix(size_t size) const;
  // Returns `size` bytes from `offset`, sharing the block. REQUIRES: they are inside.
  Buffer Slice(size_t offset, size_t size) const;

  // Returns whether no other buffer shares the block; true where there is no block. After true,
  // everything that other holders did with their copies has happened before, and this holder may
  // write.
  bool IsUnique() const;

 private:
  friend class BufferPool;
  friend class WeakBuffer;
  std::shared_ptr<void> owner_;
  std::byte* data_ = nullptr;
  size_t size_ = 0;
};

// A reference to a buffer that finds it again as long as a copy of it exists, but does not keep it
// alive. Thread-safe as Buffer is.
class WeakBuffer {
 public:
  WeakBuffer() = default;
  explicit WeakBuffer(const Buffer& buffer)
      : owner_(buffer.owner_), data_(buffer.data_), size_(buffer.size_) {}
  // Returns the buffer, or an empty one when the last copy has been destroyed.
  Buffer Lock() const;

 private:
  std::weak_ptr<void> owner_;
  std::byte* data_ = nullptr;
  size_t size_ = 0;
};

// A pool of blocks of one memory domain, so that the data path neither calls malloc for large
// blocks nor faults pages. Blocks are recycled by size class; a block has 256 bytes, or is at most
// an eighth larger than the size asked for. Blocks that were not needed for a while are freed: in
// each class, those that lay idle while 256 blocks were taken, and four more for each block that
// the pool has. Thread-safe. Buffers may outlive the pool: the last of them releases the domain.
class BufferPool {
 public:
  struct Stats {
    size_t bytes_used = 0;  // bytes of blocks that buffers hold
    size_t bytes_idle = 0;  // bytes of blocks that wait for a buffer
  };

  // Keeps at most `max_idle_bytes` of free blocks; a block that comes back beyond that is freed.
  explicit BufferPool(std::shared_ptr<MemoryDomain> domain = HostMemory(),
                      size_t max_idle_bytes = size_t{256} << 20);
  BufferPool(const BufferPool&) = delete;
  BufferPool& operator=(const BufferPool&) = delete;

  // Returns a buffer of `size` bytes in a block of at least that capacity, 64-byte aligned. The
  // block is from the heap where the domain has no more.
  Buffer Get(size_t size);
  // Returns `buffer`, or, where it is shorter than half of its block of `block_bytes`, a copy in a
  // smaller block.
  Buffer Fit(Buffer buffer, size_t block_bytes);

  Stats stats() const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace bdn

#endif  // BANDONEON_COMMON_BASE_BUFFER_H_
