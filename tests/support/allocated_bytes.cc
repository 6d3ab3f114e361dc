#include "tests/support/allocated_bytes.h"

#include <cstdlib>
#include <new>

namespace {

size_t bytes_allocated = 0;

void* Allocate(size_t size, size_t alignment) {
  bytes_allocated += size;
  void* block = std::aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
  if (block == nullptr) std::abort();
  return block;
}

}  // namespace

void* operator new(size_t size) { return Allocate(size, alignof(std::max_align_t)); }
// Said, too, for a sanitizer has its own.
void* operator new(size_t size, const std::nothrow_t&) noexcept { return operator new(size); }
void* operator new(size_t size, std::align_val_t alignment) {
  return Allocate(size, static_cast<size_t>(alignment));
}
void operator delete(void* block) noexcept { std::free(block); }
void operator delete(void* block, size_t) noexcept { std::free(block); }
void operator delete(void* block, std::align_val_t) noexcept { std::free(block); }
void operator delete(void* block, size_t, std::align_val_t) noexcept { std::free(block); }

namespace bdn::testing {

size_t AllocatedBytes() { return bytes_allocated; }

}  // namespace bdn::testing
