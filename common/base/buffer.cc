#include "common/base/buffer.h"

#include <bit>
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

namespace bdn {
namespace {

constexpr size_t kAlignment = 64;
constexpr size_t kSmallestClass = 256;

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

struct BufferPool::State {
  explicit State(size_t max) : max_idle_bytes(max) {}
  ~State() {
    for (auto& blocks : free_blocks) {
      for (std::byte* block : blocks) AlignedFree(block);
    }
  }

  const size_t max_idle_bytes;
  Mutex mu;
  std::vector<std::byte*> free_blocks[64] ABSL_GUARDED_BY(mu);
  size_t idle_bytes ABSL_GUARDED_BY(mu) = 0;
};

BufferPool::BufferPool(size_t max_idle_bytes) : state_(std::make_shared<State>(max_idle_bytes)) {}

Buffer BufferPool::Get(size_t size) {
  Buffer buffer;
  if (size == 0) return buffer;
  const size_t capacity = std::bit_ceil(std::max(size, kSmallestClass));
  const int size_class = std::countr_zero(capacity);
  std::byte* block = nullptr;
  {
    MutexLock lock(&state_->mu);
    auto& blocks = state_->free_blocks[size_class];
    if (!blocks.empty()) {
      block = blocks.back();
      blocks.pop_back();
      state_->idle_bytes -= capacity;
    }
  }
  if (block == nullptr) {
    block = AlignedAlloc(capacity);
    std::memset(block, 0, capacity);  // faults the pages now, not on the data path
  }
  buffer.data_ = block;
  buffer.size_ = size;
  buffer.owner_ = std::shared_ptr<void>(block, [state = state_, size_class](void* pointer) {
    auto* freed = static_cast<std::byte*>(pointer);
    const size_t freed_bytes = size_t{1} << size_class;
    {
      MutexLock lock(&state->mu);
      if (state->idle_bytes + freed_bytes <= state->max_idle_bytes) {
        state->free_blocks[size_class].push_back(freed);
        state->idle_bytes += freed_bytes;
        freed = nullptr;
      }
    }
    if (freed != nullptr) AlignedFree(freed);
  });
  return buffer;
}

}  // namespace bdn
