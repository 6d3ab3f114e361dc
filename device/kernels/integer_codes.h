#ifndef BANDONEON_DEVICE_KERNELS_INTEGER_CODES_H_
#define BANDONEON_DEVICE_KERNELS_INTEGER_CODES_H_

#include <cmath>
#include <cstdint>

#include "device/kernels/draw_words.h"
#include "device/kernels/kernel_id.h"
#include "device/kernels/portable.h"
#include "device/kernels/source_elements.h"

// The kernels of int8, int4 and int2, whose arithmetic and payload compressors/integer.h defines.

namespace bdn::device_kernels {

inline constexpr uint32_t kIntegerRun = 32;

// The options of the codec.
struct IntegerFormat {
  uint32_t bits;
  uint32_t group;
  bool hadamard;
  bool nearest;
  float largest_scale;  // S

  BDN_DEVICE float MostCode() const { return static_cast<float>((1u << (bits - 1)) - 1); }  // L
  BDN_DEVICE uint32_t RunBytes() const { return 4 * bits; }
  // Returns the number of elements in a tile, which are whole groups where groups are shorter than
  // a tile.
  BDN_DEVICE uint32_t TileElements() const {
    return group <= kTile ? kTile / group * group : kTile;
  }
  BDN_DEVICE uint32_t NumTiles(uint32_t n) const { return RoundUpDivide(n, TileElements()); }
};

// Returns the index at which a tile's element j is kept. A run begins in another bank than the run
// before it, so that threads which walk through runs do not wait for each other.
BDN_DEVICE uint32_t Spread(uint32_t j) { return j + j / kIntegerRun; }
inline constexpr uint32_t kSpreadTile = kTile + kTile / kIntegerRun;

// Transforms a block of 32 by H.
BDN_DEVICE void Transform(float (&run)[kIntegerRun]) {
  BDN_UNROLL
  for (uint32_t stride = 1; stride < kIntegerRun; stride *= 2) {
    BDN_UNROLL
    for (uint32_t j = 0; j < kIntegerRun; ++j) {
      if ((j & stride) != 0) continue;
      const float a = run[j];
      const float b = run[j + stride];
      run[j] = a + b;
      run[j + stride] = a - b;
    }
  }
}
// Does the same in place.
BDN_DEVICE void TransformInPlace(float* c) {
  float run[kIntegerRun];
  BDN_UNROLL
  for (uint32_t j = 0; j < kIntegerRun; ++j) run[j] = c[j];
  Transform(run);
  BDN_UNROLL
  for (uint32_t j = 0; j < kIntegerRun; ++j) c[j] = run[j];
}

// Sets c to the values to quantize of a run p, and returns the bits of their largest magnitude. c
// may be p.
BDN_DEVICE uint32_t PrepareRun(const float* p, uint32_t count, bool hadamard, float* c) {
  float run[kIntegerRun];
  BDN_UNROLL
  for (uint32_t j = 0; j < kIntegerRun; ++j) run[j] = j < count ? p[j] : 0.0f;
  if (hadamard && count == kIntegerRun) {
    BDN_UNROLL
    for (uint32_t j = 0; j < kIntegerRun; ++j) run[j] = 0x1p-5f * run[j];
    Transform(run);
  }
  uint32_t largest = 0;
  BDN_UNROLL
  for (uint32_t j = 0; j < kIntegerRun; ++j) {
    largest = Most(largest, MagnitudeBits(run[j]));
    if (j < count) c[j] = run[j];
  }
  return largest;
}

// The part of the array that one block of threads works on.
struct IntegerTile {
  uint32_t begin;
  uint32_t count;
  uint32_t runs;
  uint32_t first_group;
  uint32_t groups;

  BDN_DEVICE IntegerTile(const IntegerFormat& format, uint32_t n, uint32_t tile)
      : begin(tile * format.TileElements()),
        count(Least(n - begin, format.TileElements())),
        runs(RoundUpDivide(count, kIntegerRun)),
        first_group(begin / format.group),
        groups((begin + count - 1) / format.group - first_group + 1) {}
  BDN_DEVICE uint32_t RunCount(uint32_t run) const {
    return Least(count - run * kIntegerRun, kIntegerRun);
  }
};

// A kernel for groups longer than a tile. It sets magnitudes[g] to the bits of the group's largest
// |c|, and notes elements that are not finite. One pass. REQUIRES: the magnitudes are 0 before.
struct IntegerMagnitudes {
  static constexpr KernelId kId = KernelId::kIntegerMagnitudes;
  static constexpr int kPhases = 2;
  struct Arguments {
    Source source;
    IntegerFormat format;
    uint32_t* magnitudes;
    EncodeResult* result;
  };
  struct Shared {
    float p[kSpreadTile];
  };

  template <int kPhase>
  BDN_DEVICE static void Run(const Thread& at, const Arguments& a, Shared& shared) {
    const IntegerTile tile(a.format, a.source.n, at.block);
    if constexpr (kPhase == 0) {
      for (uint32_t j = at.thread; j < tile.count; j += at.threads) {
        const float p = Peek(a.source, tile.begin + j);
        if (!IsFinite(p)) NoteNonFinite(a.source, tile.begin + j, a.result);
        shared.p[Spread(j)] = p;
      }
    } else {
      for (uint32_t run = at.thread; run < tile.runs; run += at.threads) {
        float* const p = shared.p + Spread(run * kIntegerRun);
        const uint32_t largest = PrepareRun(p, tile.RunCount(run), a.format.hadamard, p);
        AtomicMost(a.magnitudes + (tile.begin + run * kIntegerRun) / a.format.group, largest);
      }
    }
  }
};

// A kernel that writes scales and codes, and updates the residual or replica. One pass.
// `magnitudes` is null for groups that a tile holds. Where the check of the input found something,
// a residual or replica is left as it was.
struct EncodeIntegers {
  static constexpr KernelId kId = KernelId::kEncodeIntegers;
  static constexpr int kPhases = 6;
  static constexpr uint32_t kMostRuns = kTile / kIntegerRun;
  struct Arguments {
    Source source;
    IntegerFormat format;
    DrawKeys draw;
    const uint32_t* magnitudes;
    float* scales;
    uint8_t* codes;
    EncodeResult* result;
  };
  struct Shared {
    float p[kSpreadTile];
    float c[kSpreadTile];  // values to quantize, then decoded values
    uint32_t run_magnitude[kMostRuns];
    float inverse[kMostRuns];  // by group: L / m
    float scale[kMostRuns];    // s
  };

  template <int kPhase>
  BDN_DEVICE static void Run(const Thread& at, const Arguments& a, Shared& shared) {
    if (HasMemory(a.source) && !AllFinite(a.result)) return;
    const IntegerTile tile(a.format, a.source.n, at.block);
    if constexpr (kPhase == 0) {
      for (uint32_t j = at.thread; j < tile.count; j += at.threads) {
        const float p = Take(a.source, tile.begin + j);
        if (!IsFinite(p)) NoteNonFinite(a.source, tile.begin + j, a.result);
        shared.p[Spread(j)] = p;
      }
    } else if constexpr (kPhase == 1) {
      for (uint32_t run = at.thread; run < tile.runs; run += at.threads) {
        const uint32_t from = Spread(run * kIntegerRun);
        shared.run_magnitude[run] =
            PrepareRun(shared.p + from, tile.RunCount(run), a.format.hadamard, shared.c + from);
      }
    } else if constexpr (kPhase == 2) {
      for (uint32_t g = at.thread; g < tile.groups; g += at.threads) SetScale(a, tile, g, shared);
    } else if constexpr (kPhase == 3) {
      for (uint32_t t = at.thread; t < tile.runs * a.format.RunBytes(); t += at.threads) {
        EncodeByte(a, tile, t / a.format.RunBytes(), t % a.format.RunBytes(), shared);
      }
    } else if constexpr (kPhase == 4) {
      if (!HasMemory(a.source) || !a.format.hadamard) return;
      for (uint32_t run = at.thread; run < tile.count / kIntegerRun; run += at.threads) {
        TransformInPlace(shared.c + Spread(run * kIntegerRun));
      }
    } else {
      if (!HasMemory(a.source)) return;
      for (uint32_t j = at.thread; j < tile.count; j += at.threads) {
        const uint32_t i = tile.begin + j;
        const float p = shared.p[Spread(j)];
        const float decoded = shared.c[Spread(j)];
        const bool transformed = a.format.hadamard && j < tile.count / kIntegerRun * kIntegerRun;
        transformed ? LeaveClamped(a.source, i, p, decoded) : Leave(a.source, i, p, decoded);
      }
    }
  }

  // Sets the scale of the tile's group g.
  BDN_DEVICE static void SetScale(const Arguments& a, const IntegerTile& tile, uint32_t g,
                                  Shared& shared) {
    const uint32_t group = tile.first_group + g;
    const uint32_t group_begin = group * a.format.group;
    uint32_t bits = 0;
    if (a.magnitudes != nullptr) {
      bits = a.magnitudes[group];
    } else {
      const uint32_t first = (group_begin - tile.begin) / kIntegerRun;
      const uint32_t end = Least(tile.runs, first + a.format.group / kIntegerRun);
      for (uint32_t run = first; run < end; ++run) bits = Most(bits, shared.run_magnitude[run]);
    }
    const float m = FloatOf(bits);
    const bool is_zero = m < 0x1p-100f;
    const float most = a.format.MostCode();
    shared.inverse[g] = is_zero ? 0.0f : most / m;
    shared.scale[g] = is_zero ? 0.0f : Least(m / most, a.format.largest_scale);
    if (group_begin >= tile.begin) a.scales[group] = shared.scale[g];
  }

  BDN_DEVICE static void EncodeByte(const Arguments& a, const IntegerTile& tile, uint32_t run,
                                    uint32_t byte, Shared& shared) {
    const uint32_t run_count = tile.RunCount(run);
    if (byte >= run_count) return;  // such a byte holds no element
    const uint32_t run_begin = tile.begin + run * kIntegerRun;
    const uint32_t g = run_begin / a.format.group - tile.first_group;
    const uint32_t mask = (1u << a.format.bits) - 1;
    uint32_t packed = 0;
    for (uint32_t field = 0; field < 8 / a.format.bits; ++field) {
      const uint32_t e = byte + a.format.RunBytes() * field;
      if (e >= run_count) break;
      float& c = shared.c[Spread(run * kIntegerRun + e)];
      const float sum = Round(a, run_begin + e, c * shared.inverse[g]);
      packed |= (BitsOf(sum) & mask) << (field * a.format.bits);
      c = (sum - kMagic) * shared.scale[g];
    }
    a.codes[run_begin / kIntegerRun * a.format.RunBytes() + byte] = static_cast<uint8_t>(packed);
  }

  // Added to a small number, kMagic rounds it to a whole number, ties to even, whose two's
  // complement ends the bits of the sum. Taken away again, it leaves +0 for 0.
  static constexpr float kMagic = 12582912.0f;

  // Returns the code of element i, plus kMagic.
  BDN_DEVICE static float Round(const Arguments& a, uint32_t i, float z) {
    if (a.format.nearest) return z + kMagic;
    // This is (bits + 0.5) / 65536, exactly: the bits are put in the mantissa of a number from 1 to
    // 2.
    const float uniform = FloatOf(a.draw.Bits16(i) << 7 | 0x3f800040u) - 1.0f;
    const float most = a.format.MostCode();
    return Least(Most(floorf(z + uniform), -most), most) + kMagic;
  }
};

// A kernel that decodes. One pass.
struct DecodeIntegers {
  static constexpr KernelId kId = KernelId::kDecodeIntegers;
  static constexpr int kPhases = 3;
  struct Arguments {
    IntegerFormat format;
    const float* scales;
    const uint8_t* codes;
    Target target;
  };
  struct Shared {
    float c[kSpreadTile];
  };

  template <int kPhase>
  BDN_DEVICE static void Run(const Thread& at, const Arguments& a, Shared& shared) {
    const IntegerTile tile(a.format, a.target.n, at.block);
    if constexpr (kPhase == 0) {
      for (uint32_t j = at.thread; j < tile.count; j += at.threads) {
        shared.c[Spread(j)] = ValueAt(a, tile.begin + j);
      }
    } else if constexpr (kPhase == 1) {
      if (!a.format.hadamard) return;
      for (uint32_t run = at.thread; run < tile.count / kIntegerRun; run += at.threads) {
        TransformInPlace(shared.c + Spread(run * kIntegerRun));
      }
    } else {
      for (uint32_t j = at.thread; j < tile.count; j += at.threads) {
        Deliver(a.target, tile.begin + j, shared.c[Spread(j)]);
      }
    }
  }

  BDN_DEVICE static float ValueAt(const Arguments& a, uint32_t i) {
    const uint32_t bytes = a.format.RunBytes();
    const uint32_t e = i % kIntegerRun;
    const uint32_t byte = a.codes[i / kIntegerRun * bytes + e % bytes];
    const uint32_t code = byte >> (e / bytes * a.format.bits);
    // The sign of the code is the highest bit of its field.
    const auto q = static_cast<int32_t>(code << (32 - a.format.bits)) >> (32 - a.format.bits);
    return static_cast<float>(q) * a.scales[i / a.format.group];
  }
};

}  // namespace bdn::device_kernels

#endif  // BANDONEON_DEVICE_KERNELS_INTEGER_CODES_H_
