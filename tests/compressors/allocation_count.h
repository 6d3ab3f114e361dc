#ifndef BANDONEON_TESTS_COMPRESSORS_ALLOCATION_COUNT_H_
#define BANDONEON_TESTS_COMPRESSORS_ALLOCATION_COUNT_H_

#include <cstddef>

// In a binary linked with allocation_count.cc and --wrap of malloc, calloc, realloc, aligned_alloc
// and posix_memalign, the linker sends calls of these to functions that count, and `new` ends there
// too. What shared libraries call inside themselves is not seen.

namespace bdn {

// Returns the number of allocations of this thread.
size_t AllocationCount();

}  // namespace bdn

#endif  // BANDONEON_TESTS_COMPRESSORS_ALLOCATION_COUNT_H_
