#include "tests/compressors/allocation_count.h"

#include <cstdlib>
#include <new>

namespace {

thread_local size_t allocations = 0;

}  // namespace

namespace bdn {

size_t AllocationCount() { return allocations; }

}  // namespace bdn

// The names are the linker's.
// NOLINTBEGIN(bugprone-reserved-identifier,cert-dcl37-c,cert-dcl51-cpp)
extern "C" {
void* __real_malloc(size_t size);
void* __real_calloc(size_t count, size_t size);
void* __real_realloc(void* data, size_t size);
void* __real_aligned_alloc(size_t alignment, size_t size);
int __real_posix_memalign(void** data, size_t alignment, size_t size);

void* __wrap_malloc(size_t size) {
  ++allocations;
  return __real_malloc(size);
}
void* __wrap_calloc(size_t count, size_t size) {
  ++allocations;
  return __real_calloc(count, size);
}
void* __wrap_realloc(void* data, size_t size) {
  ++allocations;
  return __real_realloc(data, size);
}
void* __wrap_aligned_alloc(size_t alignment, size_t size) {
  ++allocations;
  return __real_aligned_alloc(alignment, size);
}
int __wrap_posix_memalign(void** data, size_t alignment, size_t size) {
  ++allocations;
  return __real_posix_memalign(data, alignment, size);
}
}
// NOLINTEND(bugprone-reserved-identifier,cert-dcl37-c,cert-dcl51-cpp)

void* operator new(size_t size) {
  void* const data = std::malloc(size == 0 ? 1 : size);
  if (data == nullptr) throw std::bad_alloc();
  return data;
}
// Said, too, for a sanitizer has its own.
void* operator new(size_t size, const std::nothrow_t&) noexcept {
  return std::malloc(size == 0 ? 1 : size);
}
void* operator new(size_t size, std::align_val_t alignment) {
  const auto align = static_cast<size_t>(alignment);
  void* const data = std::aligned_alloc(align, (size / align + 1) * align);
  if (data == nullptr) throw std::bad_alloc();
  return data;
}
void operator delete(void* data) noexcept { std::free(data); }
void operator delete(void* data, size_t) noexcept { std::free(data); }
void operator delete(void* data, std::align_val_t) noexcept { std::free(data); }
void operator delete(void* data, size_t, std::align_val_t) noexcept { std::free(data); }
