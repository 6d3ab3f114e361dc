#include "common/base/crc32c.h"

#include <array>
#include <cstddef>

#include "common/base/endian.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace bdn {
namespace {

constexpr uint32_t kPolynomial = 0x82F63B78u;  // in reflected bit order

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
// The CRC instruction has a latency of three cycles and a throughput of one, so three independent
// chains keep it busy. Appending kLane zero bytes to a chain is a linear map, which is tabulated by
// byte; it joins the three chains.
constexpr size_t kLane = 4096;

constexpr uint32_t AppendZeros(uint32_t crc, size_t count) {
  for (size_t i = 0; i < count; ++i) crc = (crc >> 8) ^ kByteTable[crc & 0xff];
  return crc;
}

// The map that appends kLane zero bytes to a CRC, as four tables of one byte each.
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
    // The CRC is linear: the chains' results, each moved past the lanes behind it, add up by xor.
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

// Returns the constant by which 64 bits are multiplied, without carries, so that they stand for the
// same remainder `distance` bits further on: x^distance modulo the polynomial, reflected. After
// Gopal and others, Fast CRC Computation for Generic Polynomials Using PCLMULQDQ Instruction
// (Intel, 2009).
constexpr uint64_t Forward(size_t distance) {
  uint32_t power = 1;
  for (size_t i = 0; i < distance; ++i) power = (power << 1) ^ (power >> 31 ? 0x1EDC6F41u : 0);
  uint64_t reflected = 0;
  for (int bit = 0; bit < 32; ++bit) reflected |= uint64_t{power >> bit & 1} << (31 - bit);
  return reflected << 1;
}

#define BDN_FOLDING __attribute__((target("avx512f,avx512dq,avx512vl,vpclmulqdq,pclmul,sse4.2")))

// Returns the constants of each 128 bits, for the earlier half and for the later, to move them
// `kBits` further on.
template <size_t kBits>
BDN_FOLDING inline __m512i ForwardAll() {
  constexpr auto kEarlier = static_cast<long long>(Forward(kBits + 32));
  constexpr auto kLater = static_cast<long long>(Forward(kBits - 32));
  return _mm512_set_epi64(kLater, kEarlier, kLater, kEarlier, kLater, kEarlier, kLater, kEarlier);
}
// Moves `x` forward and adds it onto `onto`: the two products and `onto` are joined by one xor of
// three.
BDN_FOLDING inline __m512i Fold(__m512i x, __m512i forward, __m512i onto) {
  constexpr int kXorOfThree = 0x96;
  return _mm512_ternarylogic_epi64(_mm512_clmulepi64_epi128(x, forward, 0x00),
                                   _mm512_clmulepi64_epi128(x, forward, 0x11), onto, kXorOfThree);
}

constexpr size_t kVector = 64;
constexpr size_t kLeastToFold = 16 * kVector;

// Folds four vectors at a time, which hides the latency of the product. REQUIRES: bytes.size() >=
// kLeastToFold.
BDN_FOLDING uint32_t ExtendByFolding(uint32_t crc, ByteSpan bytes) {
  const std::byte* p = bytes.data();
  size_t left = bytes.size();
  const auto load = [&p](size_t i) BDN_FOLDING { return _mm512_loadu_si512(p + i * kVector); };
  __m512i a =
      _mm512_xor_si512(load(0), _mm512_zextsi128_si512(_mm_cvtsi32_si128(static_cast<int>(crc))));
  __m512i b = load(1);
  __m512i c = load(2);
  __m512i d = load(3);
  const __m512i by_four = ForwardAll<4 * 8 * kVector>();
  for (p += 4 * kVector, left -= 4 * kVector; left >= 4 * kVector;
       p += 4 * kVector, left -= 4 * kVector) {
    a = Fold(a, by_four, load(0));
    b = Fold(b, by_four, load(1));
    c = Fold(c, by_four, load(2));
    d = Fold(d, by_four, load(3));
  }
  const __m512i by_one = ForwardAll<8 * kVector>();
  d = Fold(Fold(Fold(a, by_one, b), by_one, c), by_one, d);
  // The 64 bytes that remain stand for the whole message so far, including the initial value: so
  // their checksum begins at 0.
  alignas(kVector) std::byte rest[kVector];
  _mm512_store_si512(rest, d);
  return ExtendSse42(ExtendSse42(0, rest), {p, left});
}
#undef BDN_FOLDING
#endif

}  // namespace

std::optional<uint32_t> Crc32cBy(Crc32cMethod method, ByteSpan bytes) {
  if (method == Crc32cMethod::kTable) return ~ExtendPortable(~0u, bytes);
#if defined(__x86_64__)
  static const bool kHasInstruction = __builtin_cpu_supports("sse4.2");
  static const bool kFolds = kHasInstruction && __builtin_cpu_supports("avx512dq") &&
                             __builtin_cpu_supports("avx512vl") &&
                             __builtin_cpu_supports("vpclmulqdq");
  if (!kHasInstruction || (method == Crc32cMethod::kFolding && !kFolds)) return std::nullopt;
  const bool folds = method == Crc32cMethod::kFolding && bytes.size() >= kLeastToFold;
  return ~(folds ? ExtendByFolding(~0u, bytes) : ExtendSse42(~0u, bytes));
#else
  return std::nullopt;
#endif
}

uint32_t Crc32c(ByteSpan bytes) {
  static const Crc32cMethod kBest = [] {
    for (const auto method : {Crc32cMethod::kFolding, Crc32cMethod::kInstruction}) {
      if (Crc32cBy(method, {}).has_value()) return method;
    }
    return Crc32cMethod::kTable;
  }();
  return *Crc32cBy(kBest, bytes);
}

}  // namespace bdn
