#ifndef BANDONEON_COMMON_BASE_ENDIAN_H_
#define BANDONEON_COMMON_BASE_ENDIAN_H_

#include <bit>
#include <concepts>
#include <cstring>
#include <type_traits>

#include "common/base/bytes.h"

// All numbers on the wire are little-endian, and so is every machine that we build for: loads and
// stores are plain copies that need no alignment.
static_assert(std::endian::native == std::endian::little);

namespace bdn {

// Reads a value at any alignment. REQUIRES: offset + sizeof(T) <= bytes.size().
template <typename T>
requires std::is_trivially_copyable_v<T> T LoadLittle(ByteSpan bytes, size_t offset = 0) {
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof(T));
  return value;
}

// Writes a value at any alignment. REQUIRES: offset + sizeof(T) <= bytes.size().
template <typename T>
requires std::is_trivially_copyable_v<T>
void StoreLittle(MutableByteSpan bytes, size_t offset, T value) {
  std::memcpy(bytes.data() + offset, &value, sizeof(T));
}

}  // namespace bdn

#endif  // BANDONEON_COMMON_BASE_ENDIAN_H_
