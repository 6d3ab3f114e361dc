#ifndef BANDONEON_COMMON_BASE_BYTES_H_
#define BANDONEON_COMMON_BASE_BYTES_H_

#include <cstddef>
#include <span>

namespace bdn {

using ByteSpan = std::span<const std::byte>;
using MutableByteSpan = std::span<std::byte>;

}  // namespace bdn

#endif  // BANDONEON_COMMON_BASE_BYTES_H_
