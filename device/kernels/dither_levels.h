#ifndef BANDONEON_DEVICE_KERNELS_DITHER_LEVELS_H_
#define BANDONEON_DEVICE_KERNELS_DITHER_LEVELS_H_

#include <cmath>
#include <cstdint>

#include "device/kernels/draw_words.h"
#include "device/kernels/kernel_id.h"
#include "device/kernels/portable.h"
#include "device/kernels/run_sums.h"
#include "device/kernels/source_elements.h"

// The kernels of dither, whose levels and payload compressors/dither.h defines.

namespace bdn::device_kernels {

inline constexpr uint32_t kDitherLanes = 16;
inline constexpr uint32_t kDitherColumn = 32;  // codes of one lane in a group
inline constexpr uint32_t kDitherGroup = kDitherLanes * kDitherColumn;
static_assert(kTile % kDitherGroup == 0);

// The options and the code length of a payload.
struct DitherFormat {
  uint32_t levels;  // s
  uint32_t bits;    // b
  bool natural;

  BDN_DEVICE uint32_t GroupWords() const { return bits * kDitherLanes; }
};

// A level, and the sign bit of the value that it stands for.
struct DitherCode {
  uint32_t level;
  uint32_t sign;
};

// The levels of one norm, of each kind. It finds the level of an element, and the value that a
// level stands for. REQUIRES: norm > 0 to find a level.
class DitherLevels {
 public:
  BDN_DEVICE DitherLevels(const DitherFormat& format, float norm)
      : format_(format), norm_(norm), g_(Unit(format) / norm), step_(Step(format, norm)) {}

  BDN_DEVICE DitherCode Find(float p, uint32_t random) const {
    const uint32_t sign = BitsOf(p) & 0x80000000u;
    const float magnitude = FloatOf(MagnitudeBits(p));
    uint32_t level = 0;
    if (format_.natural) {
      level = FindNatural(magnitude * g_, random);
    } else if (format_.levels == 0) {
      const auto fixed = static_cast<uint32_t>(Nearest(p * g_));
      return {0, (fixed + random - 32768u) & 0x80000000u};
    } else {
      level = (static_cast<uint32_t>(Nearest(magnitude * g_)) + random) >> 16;
    }
    level = Least(level, format_.levels);
    return {level, level == 0 ? 0 : sign};
  }

  BDN_DEVICE float Value(DitherCode code) const {
    float magnitude = norm_;
    if (format_.natural) {
      const uint32_t bits = BitsOf(norm_) - (format_.levels << 23) + (code.level << 23);
      magnitude = code.level == 0 ? 0.0f : FloatOf(bits);
    } else if (format_.levels > 0) {
      magnitude = static_cast<float>(code.level) * step_;
    }
    return FloatOf(BitsOf(magnitude) | code.sign);
  }

  BDN_DEVICE uint32_t Pack(DitherCode code) const {
    return code.level | code.sign >> (32 - format_.bits);
  }
  BDN_DEVICE DitherCode Unpack(uint32_t code) const {
    return {code & ((1u << (format_.bits - 1)) - 1), code >> (format_.bits - 1) << 31};
  }

 private:
  // Returns g in units of 1 / m.
  BDN_DEVICE static float Unit(const DitherFormat& format) {
    if (format.natural) return 0x1p24f;
    return format.levels == 0 ? 32768.0f : 65536.0f * static_cast<float>(format.levels);
  }
  // Returns the distance of linear levels.
  BDN_DEVICE static float Step(const DitherFormat& format, float norm) {
    return format.levels == 0 ? norm : norm / static_cast<float>(format.levels);
  }
  BDN_DEVICE uint32_t FindNatural(float z, uint32_t random) const {
    const uint32_t exponent = 127u + 25u - format_.levels;
    const float least = FloatOf(exponent << 23);
    const bool small = z < least;
    const float w = small ? z + least : z;
    const uint32_t sum = BitsOf(w) + (64u - (exponent << 23)) + (random << 7);
    return (sum >> 23) + (small ? 0 : 1);
  }
  BDN_DEVICE static int32_t Nearest(float value) { return static_cast<int32_t>(rintf(value)); }

  const DitherFormat format_;
  const float norm_;
  const float g_;
  const float step_;
};

// A kernel that sets *largest to the bits of the largest |p|, and notes elements that are not
// finite. One pass; one block for each tile. REQUIRES: *largest is 0 before.
struct LargestMagnitude {
  static constexpr KernelId kId = KernelId::kLargestMagnitude;
  static constexpr int kPhases = 3;
  struct Arguments {
    Source source;
    uint32_t* largest;
    EncodeResult* result;
  };
  struct Shared {
    uint32_t largest;
  };

  template <int kPhase>
  BDN_DEVICE static void Run(const Thread& at, const Arguments& a, Shared& shared) {
    if constexpr (kPhase == 0) {
      if (at.thread == 0) shared.largest = 0;
    } else if constexpr (kPhase == 1) {
      const uint32_t begin = at.block * kTile;
      const uint32_t end = Least(a.source.n, begin + kTile);
      uint32_t largest = 0;
      for (uint32_t i = begin + at.thread; i < end; i += at.threads) {
        const float p = Peek(a.source, i);
        if (!IsFinite(p)) NoteNonFinite(a.source, i, a.result);
        largest = Most(largest, MagnitudeBits(p));
      }
      AtomicMost(&shared.largest, largest);
    } else {
      if (at.thread == 0) AtomicMost(a.largest, shared.largest);
    }
  }
};

// A kernel that sets the norm m. It takes the maximum that LargestMagnitude left or, where `sums`
// is not null, the sums that SumRuns left with these factors. One thread.
struct DitherNorm {
  static constexpr KernelId kId = KernelId::kDitherNorm;
  static constexpr int kPhases = 1;
  static constexpr float kSmallFactor = 0x1p-80f;
  static constexpr float kLargeFactor = 0x1p80f;
  struct Arguments {
    const uint32_t* largest;
    const double* sums;
    uint32_t num_runs;
    float* norm;
  };
  struct Shared {};

  template <int kPhase>
  BDN_DEVICE static void Run(const Thread& at, const Arguments& a, Shared& /*shared*/) {
    if (at.thread != 0) return;
    const double exact = a.sums == nullptr ? FloatOf(*a.largest) : L2(a.sums, a.num_runs);
    const auto norm = static_cast<float>(Least(exact, static_cast<double>(0x1.fffffp127f)));
    *a.norm = norm < 0x1p-96f ? 0.0f : norm;
  }

  BDN_DEVICE static double L2(const double* sums, uint32_t num_runs) {
    const double sum = AddRuns(sums, 0, num_runs);
    if (!IsFinite(sum)) return 0x1p80 * sqrt(AddRuns(sums, num_runs, 2 * num_runs));
    if (sum < 0x1p-80) return 0x1p-80 * sqrt(AddRuns(sums, 2 * num_runs, 3 * num_runs));
    return sqrt(sum);
  }
};

// A kernel that writes the codes, and updates the residual or replica. One pass; one block for each
// tile.
struct EncodeDither {
  static constexpr KernelId kId = KernelId::kEncodeDither;
  static constexpr int kPhases = 2;
  struct Arguments {
    Source source;
    DitherFormat format;
    DrawKeys draw;
    const float* norm;
    uint32_t* codes;
    EncodeResult* result;
  };
  struct Shared {
    uint8_t codes[kTile];
  };

  template <int kPhase>
  BDN_DEVICE static void Run(const Thread& at, const Arguments& a, Shared& shared) {
    if (!AllFinite(a.result)) return;
    const uint32_t begin = at.block * kTile;
    const uint32_t count = Least(a.source.n - begin, kTile);
    const uint32_t groups = count / kDitherGroup;
    if constexpr (kPhase == 0) {
      const float norm = *a.norm;
      const DitherLevels levels(a.format, norm);
      for (uint32_t j = at.thread; j < count; j += at.threads) {
        shared.codes[j] = static_cast<uint8_t>(EncodeElement(a, begin + j, norm, levels));
      }
    } else {
      uint32_t* const words = a.codes + begin / kDitherGroup * a.format.GroupWords();
      for (uint32_t t = at.thread; t < groups * a.format.GroupWords(); t += at.threads) {
        const uint32_t group = t / a.format.GroupWords();
        const uint32_t lane = t % kDitherLanes;
        words[t] =
            PackBits(a.format.bits, t % a.format.GroupWords() / kDitherLanes * 32, 32,
                     shared.codes + group * kDitherGroup + lane, kDitherLanes, kDitherColumn);
      }
      // The rest of the last tile is packed as bytes.
      const uint32_t rest = count % kDitherGroup;
      auto* const bytes = reinterpret_cast<uint8_t*>(words + groups * a.format.GroupWords());
      for (uint32_t t = at.thread; t < RoundUpDivide(rest * a.format.bits, 8); t += at.threads) {
        bytes[t] = static_cast<uint8_t>(
            PackBits(a.format.bits, t * 8, 8, shared.codes + groups * kDitherGroup, 1, rest));
      }
    }
  }

  BDN_DEVICE static uint32_t EncodeElement(const Arguments& a, uint32_t i, float norm,
                                           const DitherLevels& levels) {
    const float p = Take(a.source, i);
    if (norm == 0.0f) {
      Leave(a.source, i, p, 0.0f);
      return 0;
    }
    const DitherCode code = levels.Find(p, a.draw.Bits16(i));
    const float decoded = levels.Value(code);
    // One of two points may lie across zero from the element, so the difference may overflow.
    a.format.levels == 0 ? LeaveClamped(a.source, i, p, decoded) : Leave(a.source, i, p, decoded);
    return levels.Pack(code);
  }

  // Returns bits [from, from + width) of the string that `count` codes make, low bits first.
  BDN_DEVICE static uint32_t PackBits(uint32_t bits, uint32_t from, uint32_t width,
                                      const uint8_t* codes, uint32_t stride, uint32_t count) {
    uint32_t packed = 0;
    for (uint32_t j = from / bits; j < count && j * bits < from + width; ++j) {
      const uint32_t code = codes[j * stride];
      packed |= j * bits >= from ? code << (j * bits - from) : code >> (from - j * bits);
    }
    return packed;
  }
};

// A kernel that decodes. One pass; one block for each tile.
struct DecodeDither {
  static constexpr KernelId kId = KernelId::kDecodeDither;
  static constexpr int kPhases = 1;
  struct Arguments {
    DitherFormat format;
    const float* norm;
    const uint32_t* codes;
    Target target;
  };
  struct Shared {};

  template <int kPhase>
  BDN_DEVICE static void Run(const Thread& at, const Arguments& a, Shared& /*shared*/) {
    const DitherLevels levels(a.format, *a.norm);
    const uint32_t begin = at.block * kTile;
    const uint32_t end = Least(a.target.n, begin + kTile);
    for (uint32_t i = begin + at.thread; i < end; i += at.threads) {
      Deliver(a.target, i, levels.Value(levels.Unpack(CodeAt(a, i))));
    }
  }

  BDN_DEVICE static uint32_t CodeAt(const Arguments& a, uint32_t i) {
    const uint32_t mask = (1u << a.format.bits) - 1;
    const uint32_t group = i / kDitherGroup;
    const uint32_t e = i % kDitherGroup;
    const uint32_t* const words = a.codes + group * a.format.GroupWords();
    if (group < a.target.n / kDitherGroup) {
      const uint32_t bit = e / kDitherLanes * a.format.bits;
      const uint32_t* const word = words + bit / 32 * kDitherLanes + e % kDitherLanes;
      const uint32_t low = word[0] >> bit % 32;
      const bool goes_on = bit % 32 + a.format.bits > 32;
      return (goes_on ? low | word[kDitherLanes] << (32 - bit % 32) : low) & mask;
    }
    const uint32_t bit = e * a.format.bits;
    const auto* const byte = reinterpret_cast<const uint8_t*>(words) + bit / 8;
    const uint32_t low = static_cast<uint32_t>(byte[0]) >> bit % 8;
    const bool goes_on = bit % 8 + a.format.bits > 8;
    return (goes_on ? low | static_cast<uint32_t>(byte[1]) << (8 - bit % 8) : low) & mask;
  }
};

}  // namespace bdn::device_kernels

#endif  // BANDONEON_DEVICE_KERNELS_DITHER_LEVELS_H_
