#ifndef BANDONEON_TESTS_SUPPORT_ALLOCATED_BYTES_H_
#define BANDONEON_TESTS_SUPPORT_ALLOCATED_BYTES_H_

#include <cstddef>

namespace bdn::testing {

// Bytes that this program, of one thread, has asked `new` for so far. For programs that are made of
// allocated_bytes.cc, too, which has their `new` and `delete`.
size_t AllocatedBytes();

}  // namespace bdn::testing

#endif  // BANDONEON_TESTS_SUPPORT_ALLOCATED_BYTES_H_
