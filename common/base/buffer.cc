#include "common/base/buffer.h"

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <map>
#include <new>
#include <utility>

namespace bdn {
namespace {

constexpr size_t kAlignment = 64;
constexpr size_t kSmallestClass = 256;
// The least number of blocks taken between two sweeps of a pool.
constexpr size_t kLeastTakes = 256;

std::byte* AlignedAlloc(size_t size) {
  return static_cast<std::byte*>(::operator new (size, std::align_val_t{kAlignment}));
}

void AlignedFree(std::byte* block) { ::operator delete (block, std::align_val_t{kAlignment}); }

}  // namespace

Buffer Buffer::Allocate(size_t size) {
  Buffer buffer;
  if (size == 0) return buffer;
  buffer.data_ = AlignedAlloc(size);
  buffer.size_ = size;
  buffer.owner_ = std::shared_ptr<void>(
      buffer.data_, [](void* block) { AlignedFree(static_cast<std::byte*>(block)); });
  return buffer;
}

Buffer Buffer::CopyOf(ByteSpan bytes) {
  Buffer buffer = Allocate(bytes.size());
  if (!bytes.empty()) std::memcpy(buffer.data_, bytes.data(), bytes.size());
  return buffer;
}

Buffer Buffer::Wrap(MutableByteSpan bytes, std::function<void()> release) {
  Buffer buffer;
  buffer.data_ = bytes.data();
  buffer.size_ = bytes.size();
  buffer.owner_ =
      std::shared_ptr<void>(bytes.data(), [release = std::move(release)](void*) { release(); });
  return buffer;
}

Buffer Buffer::Prefix(size_t size) const { return Slice(0, size); }

Buffer Buffer::Slice(size_t offset, size_t size) const {
  Buffer slice = *this;
  slice.data_ += offset;
  slice.size_ = size;
  return slice;
}

bool Buffer::IsUnique() const {
  if (owner_ == nullptr) return true;
  if (owner_.use_count() != 1) return false;
  // The thread that dropped a copy released the count; counting up and down acquires it.
  const std::shared_ptr<void> acquire = owner_;
  return true;
}

Buffer WeakBuffer::Lock() const {
  Buffer buffer;
  buffer.owner_ = owner_.lock();
  if (buffer.owner_ == nullptr) return buffer;
  buffer.data_ = data_;
  buffer.size_ = size_;
  return buffer;
}

struct BufferPool::State {
  State(std::shared_ptr<MemoryDomain> blocks_of, size_t max)
      : domain(std::move(blocks_of)), max_idle_bytes(max) {}
  ~State() {
    for (auto& [bytes, free] : classes) {
      for (std::byte* block : free.blocks) domain->Free(block, bytes);
    }
  }

  // The free blocks of one size class.
  struct Class {
    std::vector<std::byte*> blocks;
    size_t fewest = 0;  // the fewest free blocks since the last sweep: that many were not needed
  };

  // Rounds up to one of eight sizes an octave.
  static size_t ClassBytes(size_t size) {
    if (size <= kSmallestClass) return kSmallestClass;
    const size_t step = size_t{1} << (std::bit_width(size - 1) - 4);
    return (size + step - 1) / step * step;
  }

  // Returns a free block of a class, or a new one; null where the domain has no more.
  std::byte* Take(size_t bytes) {
    std::vector<Unneeded> unneeded;
    std::byte* block = nullptr;
    {
      MutexLock lock(&mu);
      Class& free = classes[bytes];
      if (!free.blocks.empty()) {
        block = free.blocks.back();
        free.blocks.pop_back();
        free.fewest = std::min(free.fewest, free.blocks.size());
        idle_bytes -= bytes;
        used_bytes += bytes;
      }
      if (++takes_since_sweep > 4 * num_blocks + kLeastTakes) unneeded = Sweep();
    }
    // The domain is called without the lock: it may take a system call, and other threads take
    // blocks meanwhile.
    for (const Unneeded& old : unneeded) domain->Free(old.block, old.bytes);
    if (block != nullptr) return block;
    block = domain->Allocate(bytes);
    if (block == nullptr) return nullptr;
    MutexLock lock(&mu);
    ++num_blocks;
    used_bytes += bytes;
    return block;
  }

  void GiveBack(std::byte* block, size_t bytes) {
    {
      MutexLock lock(&mu);
      used_bytes -= bytes;
      if (idle_bytes + bytes <= max_idle_bytes) {
        classes[bytes].blocks.push_back(block);
        idle_bytes += bytes;
        return;
      }
      --num_blocks;
    }
    domain->Free(block, bytes);
  }

  // A block that a sweep has taken out of the pool, for its caller to free without the lock.
  struct Unneeded {
    std::byte* block;
    size_t bytes;
  };
  // Takes the blocks out of the pool that lay idle since the last sweep.
  std::vector<Unneeded> Sweep() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    takes_since_sweep = 0;
    std::vector<Unneeded> unneeded;
    for (auto& [bytes, free] : classes) {
      for (size_t i = 0; i < free.fewest; ++i) {
        unneeded.push_back({free.blocks.back(), bytes});
        free.blocks.pop_back();
        idle_bytes -= bytes;
        --num_blocks;
      }
      free.fewest = free.blocks.size();
    }
    return unneeded;
  }

  const std::shared_ptr<MemoryDomain> domain;
  const size_t max_idle_bytes;
  mutable Mutex mu;
  std::map<size_t, Class> classes ABSL_GUARDED_BY(mu);  // by the bytes of a block
  size_t num_blocks ABSL_GUARDED_BY(mu) = 0;            // counts used and idle blocks
  size_t used_bytes ABSL_GUARDED_BY(mu) = 0;
  size_t idle_bytes ABSL_GUARDED_BY(mu) = 0;
  size_t takes_since_sweep ABSL_GUARDED_BY(mu) = 0;
};

BufferPool::BufferPool(std::shared_ptr<MemoryDomain> domain, size_t max_idle_bytes)
    : state_(std::make_shared<State>(std::move(domain), max_idle_bytes)) {}

Buffer BufferPool::Get(size_t size) {
  Buffer buffer;
  if (size == 0) return buffer;
  const size_t bytes = State::ClassBytes(size);
  std::byte* block = state_->Take(bytes);
  if (block == nullptr) return Buffer::Allocate(size);
  buffer.data_ = block;
  buffer.size_ = size;
  // The buffer's owner keeps the state, and with it the domain, alive: buffers may outlive the
  // pool.
  buffer.owner_ = std::shared_ptr<void>(block, [state = state_, bytes](void* freed) {
    state->GiveBack(static_cast<std::byte*>(freed), bytes);
  });
  return buffer;
}

Buffer BufferPool::Fit(Buffer buffer, size_t block_bytes) {
  if (buffer.size() >= block_bytes / 2) return buffer;
  Buffer smaller = Get(buffer.size());
  if (!buffer.empty()) std::memcpy(smaller.data(), buffer.data(), buffer.size());
  return smaller;
}

BufferPool::Stats BufferPool::stats() const {
  MutexLock lock(&state_->mu);
  return {.bytes_used = state_->used_bytes, .bytes_idle = state_->idle_bytes};
}

}  // namespace bdn
