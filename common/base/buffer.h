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

// A reference-counted block of bytes. Copying shares the block; the last copy to go returns it to
// where it came from. Thread-safe as a shared_ptr is: distinct copies from distinct threads.
// Writing is for the one holder that made it, before it is shared.
class Buffer {
 public:
  Buffer() = default;  // empty: data() is null, size() is 0

  // A fresh block from the heap, 64-byte aligned, contents unspecified.
  static Buffer Allocate(size_t size);
  static Buffer CopyOf(ByteSpan bytes);
  // Somebody else's memory; `release` runs once, on whatever thread drops the last copy.
  static Buffer Wrap(MutableByteSpan bytes, std::function<void()> release);

  std::byte* data() const { return data_; }
  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  ByteSpan span() const { return {data_, size_}; }
  MutableByteSpan mutable_span() const { return {data_, size_}; }

  // The first `size` bytes, sharing the block. REQUIRES: size <= this->size().
  Buffer Prefix(size_t size) const;
  // `size` bytes from `offset`, sharing the block. REQUIRES: they are inside.
  Buffer Slice(size_t offset, size_t size) const;

  // Whether nobody else has a copy (an empty buffer is nobody else's). Then whatever others did
  // with theirs has happened before, and this holder may write.
  bool IsUnique() const;

 private:
  friend class BufferPool;
  friend class WeakBuffer;
  std::shared_ptr<void> owner_;
  std::byte* data_ = nullptr;
  size_t size_ = 0;
};

// Finds a buffer again for as long as somebody has a copy of it, and does not keep it. Thread-safe
// as Buffer is.
class WeakBuffer {
 public:
  WeakBuffer() = default;
  explicit WeakBuffer(const Buffer& buffer)
      : owner_(buffer.owner_), data_(buffer.data_), size_(buffer.size_) {}
  // Empty when the last copy has gone.
  Buffer Lock() const;

 private:
  std::weak_ptr<void> owner_;
  std::byte* data_ = nullptr;
  size_t size_ = 0;
};

// Recycles blocks of one memory domain by size class, at most an eighth larger than what is asked
// for, so that the data path neither calls malloc for large blocks nor faults pages. What was not
// needed for a while is freed: of each class, the blocks that lay idle while four times as many as
// there are were asked for. Thread-safe. Buffers may outlive the pool: the last of them takes the
// domain along.
class BufferPool {
 public:
  struct Stats {
    size_t bytes_used = 0;  // of blocks that buffers have
    size_t bytes_idle = 0;  // of blocks that wait for one
  };

  // Keeps at most `max_idle_bytes` of free blocks; what comes back beyond that is freed.
  explicit BufferPool(std::shared_ptr<MemoryDomain> domain = HostMemory(),
                      size_t max_idle_bytes = size_t{256} << 20);
  BufferPool(const BufferPool&) = delete;
  BufferPool& operator=(const BufferPool&) = delete;

  // At least `size` bytes of capacity, of which the buffer shows `size`; 64-byte aligned. From the
  // heap where the domain has no more.
  Buffer Get(size_t size);
  // `buffer`, or a copy of it in a smaller block where it fills less than half of its own.
  Buffer Fit(Buffer buffer, size_t block_bytes);

  Stats stats() const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace bdn

#endif  // BANDONEON_COMMON_BASE_BUFFER_H_
