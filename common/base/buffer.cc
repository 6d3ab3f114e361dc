#include "common/base/buffer.h"

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <iterator>
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
  State(std::shared_ptr<MemoryDomain> blocks_of, size_t max)
      : domain(std::move(blocks_of)), max_idle_bytes(max) {}
  ~State() {
    for (size_t size_class = 0; size_class < std::size(free_blocks); ++size_class) {
      for (std::byte* block : free_blocks[size_class]) domain->Free(block, ClassBytes(size_class));
    }
  }

  static size_t ClassBytes(size_t size_class) { return size_t{1} << size_class; }

  // A free block of the class, or a new one; null where the domain has no more.
  std::byte* Take(size_t size_class) {
    {
      MutexLock lock(&mu);
      auto& blocks = free_blocks[size_class];
      if (!blocks.empty()) {
        std::byte* block = blocks.back();
        blocks.pop_back();
        idle_bytes -= ClassBytes(size_class);
        return block;
      }
    }
    return domain->Allocate(ClassBytes(size_class));
  }

  void GiveBack(std::byte* block, size_t size_class) {
    const size_t bytes = ClassBytes(size_class);
    {
      MutexLock lock(&mu);
      if (idle_bytes + bytes <= max_idle_bytes) {
        free_blocks[size_class].push_back(block);
        idle_bytes += bytes;
        return;
      }
    }
    domain->Free(block, bytes);
  }

  const std::shared_ptr<MemoryDomain> domain;
  const size_t max_idle_bytes;
  Mutex mu;
  std::vector<std::byte*> free_blocks[64] ABSL_GUARDED_BY(mu);  // by size class
  size_t idle_bytes ABSL_GUARDED_BY(mu) = 0;
};

BufferPool::BufferPool(std::shared_ptr<MemoryDomain> domain, size_t max_idle_bytes)
    : state_(std::make_shared<State>(std::move(domain), max_idle_bytes)) {}

Buffer BufferPool::Get(size_t size) {
  Buffer buffer;
  if (size == 0) return buffer;
  const auto size_class =
      static_cast<size_t>(std::countr_zero(std::bit_ceil(std::max(size, kSmallestClass))));
  std::byte* block = state_->Take(size_class);
  if (block == nullptr) return Buffer::Allocate(size);
  buffer.data_ = block;
  buffer.size_ = size;
  buffer.owner_ = std::shared_ptr<void>(block, [state = state_, size_class](void* freed) {
    state->GiveBack(static_cast<std::byte*>(freed), size_class);
  });
  return buffer;
}

}  // namespace bdn
