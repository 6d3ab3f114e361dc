#include "kernels/integer_kernels.h"

#include <algorithm>
#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/integer_kernels.cc"
#include "hwy/foreach_target.h"
// The include above compiles this file once for each instruction set. It comes before all others of
// Highway, which a comment between them keeps so when they are sorted.
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace bdn {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

constexpr size_t kRun = 32;

using Tag = hn::CappedTag<float, 16>;
using WordTag = hn::RebindToUnsigned<Tag>;
using IntTag = hn::RebindToSigned<Tag>;
using ByteTag = hn::Rebind<uint8_t, Tag>;
using SignedByteTag = hn::Rebind<int8_t, Tag>;
using HalfTag = hn::Rebind<uint16_t, Tag>;
using Vector = hn::Vec<Tag>;
using Words = hn::Vec<WordTag>;
constexpr size_t kLanes = hn::MaxLanes(Tag());
constexpr size_t kVectors = kRun / kLanes;  // of a run

constexpr uint32_t kMagnitudeMask = 0x7fffffffu;

HWY_INLINE uint32_t LargestMagnitude(const float* HWY_RESTRICT c, size_t n) {
  const Tag d;
  const IntTag di;
  const auto mask = hn::Set(di, static_cast<int32_t>(kMagnitudeMask));
  // Two maxima alternate, so that neither waits for the other.
  hn::Vec<IntTag> largest[2] = {hn::Zero(di), hn::Zero(di)};
  size_t i = 0;
  for (; i + kRun <= n; i += kRun) {
    for (size_t v = 0; v < kVectors; ++v) {
      const auto bits = hn::BitCast(di, hn::LoadU(d, c + i + v * kLanes));
      largest[v % 2] = hn::Max(largest[v % 2], hn::And(bits, mask));
    }
  }
  int32_t most = hn::GetLane(hn::MaxOfLanes(di, hn::Max(largest[0], largest[1])));
  for (; i < n; ++i) {
    uint32_t bits;
    std::memcpy(&bits, c + i, sizeof(bits));
    most = std::max(most, static_cast<int32_t>(bits & kMagnitudeMask));
  }
  return static_cast<uint32_t>(most);
}

void GroupMagnitudesKernel(const float* HWY_RESTRICT c, size_t n, size_t group,
                           uint32_t* HWY_RESTRICT magnitudes) {
  for (size_t begin = 0; begin < n; begin += group) {
    *magnitudes++ = LargestMagnitude(c + begin, std::min(group, n - begin));
  }
}

// The draw of a run's elements. Each of its 16 words gives two elements their 16 bits, in order.
class RunDraw {
 public:
  HWY_INLINE RunDraw(uint32_t k0, uint32_t k1) : k0_(k0), k1_(k1) {}

  // Writes the bits of elements i to i + 31. REQUIRES: i is a multiple of 32.
  HWY_INLINE void Fill(size_t i, uint16_t* HWY_RESTRICT bits) const {
    const WordTag du;
    const auto lanes = hn::Mul(hn::Iota(du, 0u), hn::Set(du, kStep));
    for (size_t w = 0; w < kRun / 2; w += kLanes) {
      const uint32_t first = static_cast<uint32_t>(i / 2 + w) * kStep + k0_;
      auto x = hn::Add(lanes, hn::Set(du, first));
      x = hn::Mul(hn::Xor(x, hn::ShiftRight<16>(x)), hn::Set(du, 0x21F0AAADu));
      x = hn::Add(hn::Xor(x, hn::ShiftRight<15>(x)), hn::Set(du, k1_));
      x = hn::Mul(x, hn::Set(du, 0x735A2D97u));
      x = hn::Xor(x, hn::ShiftRight<15>(x));
      hn::StoreU(x, du, reinterpret_cast<uint32_t*>(bits + 2 * w));
    }
  }

 private:
  static constexpr uint32_t kStep = 0x9E3779B9u;
  const uint32_t k0_;
  const uint32_t k1_;
};

// Returns (bits + 0.5) / 65536, exactly: the bits are put in the mantissa of a number from 1 to 2,
// of which 1 is taken.
HWY_INLINE Vector Uniform(const uint16_t* HWY_RESTRICT bits) {
  const Tag d;
  const WordTag du;
  const auto word = hn::PromoteTo(du, hn::LoadU(HalfTag(), bits));
  const auto one = hn::Or(hn::ShiftLeft<7>(word), hn::Set(du, 0x3f800040u));
  return hn::Sub(hn::BitCast(d, one), hn::Set(d, 1.0f));
}

// Packs the low kBits of a run's words. With 4 bits, elements b and b + 16 share byte b; with 2
// bits, elements b, b + 8, b + 16 and b + 24 do.
template <int kBits>
HWY_INLINE void PackRun(const Words* HWY_RESTRICT words, uint8_t* HWY_RESTRICT codes) {
  const WordTag du;
  const ByteTag db;
  if constexpr (kBits == 4) {
    const auto mask = hn::Set(du, 15u);
    for (size_t v = 0; v < kVectors / 2; ++v) {
      const auto low = hn::And(words[v], mask);
      const auto high = hn::ShiftLeft<4>(hn::And(words[v + kVectors / 2], mask));
      hn::StoreU(hn::U8FromU32(hn::Or(low, high)), db, codes + v * kLanes);
    }
  } else {
    const auto mask = hn::Set(du, (1u << kBits) - 1);
    uint8_t bytes[kRun];
    uint8_t* const to = kBits == 8 ? codes : bytes;
    for (size_t v = 0; v < kVectors; ++v) {
      hn::StoreU(hn::U8FromU32(hn::And(words[v], mask)), db, to + v * kLanes);
    }
    if constexpr (kBits == 2) {
      uint64_t part[4];
      std::memcpy(part, bytes, sizeof(part));
      const uint64_t packed = part[0] | part[1] << 2 | part[2] << 4 | part[3] << 6;
      std::memcpy(codes, &packed, sizeof(packed));
    }
  }
}

template <int kBits, bool kNearest, AfterQuantize kAfter>
HWY_INLINE void QuantizeRun(const RunDraw& draw, size_t at, IntegerScale scale,
                            float* HWY_RESTRICT c, uint8_t* HWY_RESTRICT codes) {
  const Tag d;
  // Added to a small number, `magic` rounds it to a whole number, ties to even, whose two's
  // complement ends the bits of the sum. Taken away again, it leaves +0 for 0.
  const auto magic = hn::Set(d, 12582912.0f);
  [[maybe_unused]] const auto most = hn::Set(d, static_cast<float>((1 << (kBits - 1)) - 1));
  const auto inverse = hn::Set(d, scale.inverse);
  const auto step = hn::Set(d, scale.scale);
  HWY_ALIGN uint16_t bits[kRun];
  if constexpr (!kNearest) draw.Fill(at, bits);
  Words words[kVectors];
  for (size_t v = 0; v < kVectors; ++v) {
    const auto value = hn::LoadU(d, c + v * kLanes);
    auto z = hn::Mul(value, inverse);
    // Only with a draw can z be half a level or more past L, so only then it is limited.
    if constexpr (!kNearest) {
      z = hn::Floor(hn::Add(z, Uniform(bits + v * kLanes)));
      z = hn::Min(hn::Max(z, hn::Neg(most)), most);
    }
    const auto sum = hn::Add(z, magic);
    words[v] = hn::BitCast(WordTag(), sum);
    if constexpr (kAfter != AfterQuantize::kKeep) {
      const auto decoded = hn::Mul(hn::Sub(sum, magic), step);
      const bool subtract = kAfter == AfterQuantize::kSubtract;
      hn::StoreU(subtract ? hn::Sub(value, decoded) : decoded, d, c + v * kLanes);
    }
  }
  PackRun<kBits>(words, codes);
}

// Returns the bytes that hold the n <= 32 elements of a run.
template <int kBits>
HWY_INLINE size_t RunBytes(size_t n) {
  return std::min<size_t>(4 * kBits, n);
}

// Quantizes one group, or a part of it.
template <int kBits, bool kNearest, AfterQuantize kAfter>
HWY_INLINE void QuantizePart(const RunDraw& draw, size_t at, size_t n, IntegerScale scale,
                             float* HWY_RESTRICT c, uint8_t* HWY_RESTRICT codes) {
  size_t i = 0;
  for (; i + kRun <= n; i += kRun) {
    QuantizeRun<kBits, kNearest, kAfter>(draw, at + i, scale, c + i, codes + i / 8 * kBits);
  }
  if (i == n) return;
  // The last elements are quantized in a run that is filled up with zeros, of which only the bytes
  // that hold an element are written.
  float tail[kRun] = {};
  uint8_t tail_codes[4 * kBits];
  std::memcpy(tail, c + i, (n - i) * sizeof(float));
  QuantizeRun<kBits, kNearest, kAfter>(draw, at + i, scale, tail, tail_codes);
  if (kAfter != AfterQuantize::kKeep) std::memcpy(c + i, tail, (n - i) * sizeof(float));
  std::memcpy(codes + i / 8 * kBits, tail_codes, RunBytes<kBits>(n - i));
}

// Calls visit(group's number, offset, count) for the parts of [at, at + n) in one group each.
template <typename Visit>
HWY_INLINE void ForEachPart(size_t at, size_t n, size_t group, const Visit& visit) {
  size_t g = at / group;
  size_t end = (g + 1) * group - at;  // of the group, from `at`
  for (size_t begin = 0; begin < n; begin = end, end += group, ++g) {
    visit(g, begin, std::min(n, end) - begin);
  }
}

template <int kBits, bool kNearest, AfterQuantize kAfter>
void QuantizeLoop(size_t group, const Draw& keys, size_t at, size_t n, const IntegerScale* scales,
                  float* c, void* codes) {
  const RunDraw draw(keys.k0(), keys.k1());
  auto* const bytes = static_cast<uint8_t*>(codes);
  const size_t first = at / group;
  ForEachPart(at, n, group, [&](size_t g, size_t begin, size_t count) HWY_ATTR {
    QuantizePart<kBits, kNearest, kAfter>(draw, at + begin, count, scales[g - first], c + begin,
                                          bytes + begin / 8 * kBits);
  });
}

template <int kBits, bool kNearest>
void QuantizeAfter(size_t group, const Draw& draw, size_t at, size_t n, const IntegerScale* scales,
                   float* c, AfterQuantize after, void* codes) {
  switch (after) {
    case AfterQuantize::kKeep:
      return QuantizeLoop<kBits, kNearest, AfterQuantize::kKeep>(group, draw, at, n, scales, c,
                                                                 codes);
    case AfterQuantize::kSubtract:
      return QuantizeLoop<kBits, kNearest, AfterQuantize::kSubtract>(group, draw, at, n, scales, c,
                                                                     codes);
    case AfterQuantize::kReplace:
      return QuantizeLoop<kBits, kNearest, AfterQuantize::kReplace>(group, draw, at, n, scales, c,
                                                                    codes);
  }
}

template <int kBits>
void QuantizeBits(const IntegerCoding& coding, const Draw& draw, size_t at, size_t n,
                  const IntegerScale* scales, float* c, AfterQuantize after, void* codes) {
  return coding.nearest
             ? QuantizeAfter<kBits, true>(coding.group, draw, at, n, scales, c, after, codes)
             : QuantizeAfter<kBits, false>(coding.group, draw, at, n, scales, c, after, codes);
}

void QuantizeGroupsKernel(const IntegerCoding& coding, const Draw& draw, size_t at, size_t n,
                          const IntegerScale* scales, float* c, AfterQuantize after, void* codes) {
  switch (coding.bits) {
    case 8:
      return QuantizeBits<8>(coding, draw, at, n, scales, c, after, codes);
    case 4:
      return QuantizeBits<4>(coding, draw, at, n, scales, c, after, codes);
    default:
      return QuantizeBits<2>(coding, draw, at, n, scales, c, after, codes);
  }
}

template <bool kAdd>
HWY_INLINE void StoreDecoded(hn::Vec<IntTag> q, Vector step, Vector scale, float* HWY_RESTRICT y) {
  const Tag d;
  const auto value = hn::Mul(scale, hn::Mul(hn::ConvertTo(d, q), step));
  hn::StoreU(kAdd ? hn::Add(hn::LoadU(d, y), value) : value, d, y);
}

template <int kBits, bool kAdd>
HWY_INLINE void DequantizeRun(const uint8_t* HWY_RESTRICT codes, Vector step, Vector scale,
                              float* HWY_RESTRICT y) {
  const IntTag di;
  if constexpr (kBits == 8) {
    for (size_t i = 0; i < kRun; i += kLanes) {
      const auto* from = reinterpret_cast<const int8_t*>(codes + i);
      StoreDecoded<kAdd>(hn::PromoteTo(di, hn::LoadU(SignedByteTag(), from)), step, scale, y + i);
    }
  } else if constexpr (kBits == 4) {
    for (size_t i = 0; i < kRun / 2; i += kLanes) {
      const auto both = hn::PromoteTo(di, hn::LoadU(ByteTag(), codes + i));
      const auto low = hn::ShiftRight<28>(hn::ShiftLeft<28>(both));
      const auto high = hn::ShiftRight<28>(hn::ShiftLeft<24>(both));
      StoreDecoded<kAdd>(low, step, scale, y + i);
      StoreDecoded<kAdd>(high, step, scale, y + kRun / 2 + i);
    }
  } else {
    uint64_t packed;
    std::memcpy(&packed, codes, sizeof(packed));
    uint64_t part[4];
    for (int f = 0; f < 4; ++f) part[f] = packed >> (2 * f) & 0x0303030303030303u;
    uint8_t bytes[kRun];
    std::memcpy(bytes, part, sizeof(part));
    for (size_t i = 0; i < kRun; i += kLanes) {
      const auto word = hn::PromoteTo(di, hn::LoadU(ByteTag(), bytes + i));
      StoreDecoded<kAdd>(hn::ShiftRight<30>(hn::ShiftLeft<30>(word)), step, scale, y + i);
    }
  }
}

template <int kBits, bool kAdd>
HWY_INLINE void DequantizePart(const uint8_t* HWY_RESTRICT codes, size_t n, Vector step,
                               Vector scale, float* HWY_RESTRICT y) {
  size_t i = 0;
  for (; i + kRun <= n; i += kRun) {
    DequantizeRun<kBits, kAdd>(codes + i / 8 * kBits, step, scale, y + i);
  }
  if (i == n) return;
  // The last elements are decoded in a run that is filled up with zeros, since fewer bytes may be
  // there.
  float tail[kRun] = {};
  uint8_t tail_codes[4 * kBits] = {};
  std::memcpy(tail_codes, codes + i / 8 * kBits, RunBytes<kBits>(n - i));
  std::memcpy(tail, y + i, (n - i) * sizeof(float));
  DequantizeRun<kBits, kAdd>(tail_codes, step, scale, tail);
  std::memcpy(y + i, tail, (n - i) * sizeof(float));
}

template <int kBits, bool kAdd>
void DequantizeLoop(size_t group, const void* scales, const void* codes, size_t at, size_t n,
                    float scale, float* y) {
  const Tag d;
  const auto* const bytes = static_cast<const uint8_t*>(codes) + at / 8 * kBits;
  const auto* const steps = static_cast<const char*>(scales);
  const auto factor = hn::Set(d, scale);
  ForEachPart(at, n, group, [&](size_t g, size_t begin, size_t count) HWY_ATTR {
    float step;
    std::memcpy(&step, steps + g * sizeof(step), sizeof(step));
    DequantizePart<kBits, kAdd>(bytes + begin / 8 * kBits, count, hn::Set(d, step), factor,
                                y + begin);
  });
}

template <bool kAdd>
void DequantizeBits(const IntegerCoding& coding, const void* scales, const void* codes, size_t at,
                    size_t n, float scale, float* y) {
  switch (coding.bits) {
    case 8:
      return DequantizeLoop<8, kAdd>(coding.group, scales, codes, at, n, scale, y);
    case 4:
      return DequantizeLoop<4, kAdd>(coding.group, scales, codes, at, n, scale, y);
    default:
      return DequantizeLoop<2, kAdd>(coding.group, scales, codes, at, n, scale, y);
  }
}

void DequantizeGroupsKernel(const IntegerCoding& coding, const void* scales, const void* codes,
                            size_t at, size_t n, float scale, float* y) {
  DequantizeBits<false>(coding, scales, codes, at, n, scale, y);
}
void DequantizeGroupsAndAddKernel(const IntegerCoding& coding, const void* scales,
                                  const void* codes, size_t at, size_t n, float scale, float* y) {
  DequantizeBits<true>(coding, scales, codes, at, n, scale, y);
}

// The loop is plain, since compilers turn it into vectors.
template <int kBits>
bool CodesAreValidLoop(const uint8_t* HWY_RESTRICT codes, size_t bytes) {
  constexpr unsigned kField = (1u << kBits) - 1;
  uint8_t bad = 0;
  for (size_t i = 0; i < bytes; ++i) {
    for (int at = 0; at < 8; at += kBits) {
      bad |= static_cast<uint8_t>((codes[i] >> at & kField) == 1u << (kBits - 1));
    }
  }
  return bad == 0;
}

bool CodesAreValidKernel(int bits, const void* codes, size_t bytes) {
  const auto* const from = static_cast<const uint8_t*>(codes);
  switch (bits) {
    case 8:
      return CodesAreValidLoop<8>(from, bytes);
    case 4:
      return CodesAreValidLoop<4>(from, bytes);
    default:
      return CodesAreValidLoop<2>(from, bytes);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace bdn
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace bdn {

HWY_EXPORT(GroupMagnitudesKernel);
HWY_EXPORT(QuantizeGroupsKernel);
HWY_EXPORT(DequantizeGroupsKernel);
HWY_EXPORT(DequantizeGroupsAndAddKernel);
HWY_EXPORT(CodesAreValidKernel);

void GroupMagnitudes(const float* c, size_t n, size_t group, uint32_t* magnitudes) {
  HWY_DYNAMIC_DISPATCH(GroupMagnitudesKernel)(c, n, group, magnitudes);
}
void QuantizeGroups(const IntegerCoding& coding, const Draw& draw, size_t at, size_t n,
                    const IntegerScale* scales, float* c, AfterQuantize after, void* codes) {
  HWY_DYNAMIC_DISPATCH(QuantizeGroupsKernel)(coding, draw, at, n, scales, c, after, codes);
}
void DequantizeGroups(const IntegerCoding& coding, const void* scales, const void* codes, size_t at,
                      size_t n, float scale, float* y) {
  HWY_DYNAMIC_DISPATCH(DequantizeGroupsKernel)(coding, scales, codes, at, n, scale, y);
}
void DequantizeGroupsAndAdd(const IntegerCoding& coding, const void* scales, const void* codes,
                            size_t at, size_t n, float scale, float* y) {
  HWY_DYNAMIC_DISPATCH(DequantizeGroupsAndAddKernel)(coding, scales, codes, at, n, scale, y);
}
bool CodesAreValid(int bits, const void* codes, size_t bytes) {
  return HWY_DYNAMIC_DISPATCH(CodesAreValidKernel)(bits, codes, bytes);
}

}  // namespace bdn
#endif  // HWY_ONCE
