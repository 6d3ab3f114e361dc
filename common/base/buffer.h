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

 private:
  friend class BufferPool;
  std::shared_ptr<void> owner_;
  std::byte* data_ = nullptr;
  size_t size_ = 0;
};

// Recycles blocks of one memory domain by power-of-two size class, so that the data path neither
// calls malloc for large blocks nor faults pages. Thread-safe. Buffers may outlive the pool: the
// last of them takes the domain along.
class BufferPool {
 public:
  // Keeps at most `max_idle_bytes` of free blocks; what comes back beyond that is freed.
  explicit BufferPool(std::shared_ptr<MemoryDomain> domain = HostMemory(),
                      size_t max_idle_bytes = size_t{256} << 20);
  BufferPool(const BufferPool&) = delete;
  BufferPool& operator=(const BufferPool&) = delete;

  // At least `size` bytes of capacity, of which the buffer shows `size`; 64-byte aligned. From the
  // heap where the domain has no more.
  Buffer Get(size_t size);

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace bdn

#endif  // BANDONEON_COMMON_BASE_BUFFER_H_
