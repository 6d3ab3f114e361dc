#include "common/base/crc32c.h"

#include <array>
#include <cstddef>

#include "common/base/endian.h"

#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

namespace bdn {
namespace {

constexpr uint32_t kPolynomial = 0x82F63B78u;  // reflected

constexpr std::array<uint32_t, 256> MakeByteTable() {
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) ? kPolynomial : 0);
    table[i] = crc;
  }
  return table;
}
constexpr auto kByteTable = MakeByteTable();

uint32_t ExtendPortable(uint32_t crc, ByteSpan bytes) {
  for (const std::byte b : bytes) {
    crc = (crc >> 8) ^ kByteTable[(crc ^ static_cast<uint32_t>(b)) & 0xff];
  }
  return crc;
}

#if defined(__x86_64__)
// Three independent chains hide the instruction's latency of three; appending kLane zero bytes to a
// chain is a linear map, tabulated by byte.
constexpr size_t kLane = 4096;

constexpr uint32_t AppendZeros(uint32_t crc, size_t count) {
  for (size_t i = 0; i < count; ++i) crc = (crc >> 8) ^ kByteTable[crc & 0xff];
  return crc;
}

struct ShiftTable {
  uint32_t entry[4][256];
  ShiftTable() {
    for (int byte = 0; byte < 4; ++byte) {
      uint32_t of_bit[8];
      for (int bit = 0; bit < 8; ++bit) of_bit[bit] = AppendZeros(1u << (8 * byte + bit), kLane);
      for (uint32_t value = 0; value < 256; ++value) {
        uint32_t crc = 0;
        for (int bit = 0; bit < 8; ++bit) {
          if (value >> bit & 1) crc ^= of_bit[bit];
        }
        entry[byte][value] = crc;
      }
    }
  }
  uint32_t operator()(uint32_t crc) const {
    return entry[0][crc & 0xff] ^ entry[1][crc >> 8 & 0xff] ^ entry[2][crc >> 16 & 0xff] ^
           entry[3][crc >> 24];
  }
};

__attribute__((target("sse4.2"))) uint32_t ExtendSse42(uint32_t crc, ByteSpan bytes) {
  static const ShiftTable kShift;
  const std::byte* p = bytes.data();
  size_t left = bytes.size();
  uint64_t a = crc;
  while (left >= 3 * kLane) {
    uint64_t b = 0;
    uint64_t c = 0;
    const ByteSpan lanes(p, 3 * kLane);
    for (size_t i = 0; i < kLane; i += 8) {
      a = _mm_crc32_u64(a, LoadLittle<uint64_t>(lanes, i));
      b = _mm_crc32_u64(b, LoadLittle<uint64_t>(lanes, kLane + i));
      c = _mm_crc32_u64(c, LoadLittle<uint64_t>(lanes, 2 * kLane + i));
    }
    a = kShift(kShift(static_cast<uint32_t>(a)) ^ static_cast<uint32_t>(b)) ^ c;
    p += 3 * kLane;
    left -= 3 * kLane;
  }
  for (; left >= 8; left -= 8, p += 8) a = _mm_crc32_u64(a, LoadLittle<uint64_t>({p, 8}));
  for (; left > 0; --left, ++p) {
    a = _mm_crc32_u8(static_cast<uint32_t>(a), static_cast<uint8_t>(*p));
  }
  return static_cast<uint32_t>(a);
}
#endif

}  // namespace

uint32_t Crc32cPortable(ByteSpan bytes) { return ~ExtendPortable(~0u, bytes); }

uint32_t Crc32c(ByteSpan bytes) {
#if defined(__x86_64__)
  static const bool kHasSse42 = __builtin_cpu_supports("sse4.2");
  if (kHasSse42) return ~ExtendSse42(~0u, bytes);
#endif
  return Crc32cPortable(bytes);
}

}  // namespace bdn
