#ifndef BANDONEON_DEVICE_KERNELS_TOPK_SELECTION_H_
#define BANDONEON_DEVICE_KERNELS_TOPK_SELECTION_H_

#include <cstdint>

#include "device/kernels/kernel_id.h"
#include "device/kernels/portable.h"
#include "device/kernels/source_elements.h"

// The kernels of topk, whose selection and payload compressors/topk.h defines. They find the
// threshold digit by digit of the magnitudes' bits, from the top: one kernel counts how often each
// digit occurs among the magnitudes that begin with the digits decided so far, and one decides the
// next digit. Then each tile counts the elements that it sends, and writes them at its own
// position: into the payload or, where values share their magnitudes, beside it, and another kernel
// writes those.

namespace bdn::device_kernels {

inline constexpr uint32_t kMostDigits = 2048;
inline constexpr uint32_t kNumLevels = 3;
inline constexpr uint32_t kTopKBlock = 65536;
static_assert(kTopKBlock % kTile == 0);

// The digits of a magnitude: 11, 10 and 10 of its 31 bits.
struct TopKLevel {
  uint32_t level;

  BDN_DEVICE uint32_t Bits() const { return level == 0 ? 11 : 10; }
  BDN_DEVICE uint32_t Shift() const { return 20 - 10 * level; }
};

// The state that the kernels of one encoding hand on to each other; all 0 before. A threshold of
// key and ties stands for every magnitude above the key, and the first ties equal to it.
struct TopKState {
  uint32_t prefix;  // the digits decided so far
  uint32_t left;    // the number wanted of those that begin with them
  uint32_t key;
  uint32_t ties;
  uint32_t reached;  // the number of elements that reach the sample's key
  uint32_t skips;    // 1 where the sample's threshold is final
};

// The working memory of an encoding.
struct TopKScratch {
  TopKState* state;
  uint32_t* digits;  // kMostDigits counts
  uint32_t* above;   // a tile's count of elements above the key; then the position of its first
  uint32_t* equal;   // a tile's count of elements equal to it; then the count before the tile
  // With TopKValueFormat::kTwoBit, room for as many elements as can be sent: their numbers, in
  // order, and their p.
  uint32_t* chosen;
  float* p;
};

// The source of an encoding, and whether it was taken.
struct TopKSource {
  Source source;
  // True where p of a source with a residual lies in the residual already.
  bool taken;
};

// Read returns p, wherever it is by now; ReadFirst, the first full reading, takes it.
BDN_DEVICE float Read(const TopKSource& from, uint32_t i) {
  const bool in_place = from.taken && from.source.kind == SourceKind::kFeedback;
  return in_place ? from.source.memory[i] : Peek(from.source, i);
}
BDN_DEVICE float ReadFirst(const Source& source, uint32_t i, EncodeResult* result) {
  const float p = Take(source, i);
  LeaveAll(source, i, p);
  if (!IsFinite(p)) NoteNonFinite(source, i, result);
  return p;
}

// A sample of `count` elements: the first 64 of every `period`, or with period 1 all elements.
struct TopKSample {
  static constexpr uint32_t kRun = 64;
  uint32_t period;
  uint32_t count;

  BDN_DEVICE uint32_t Element(uint32_t s) const {
    return period == 1 ? s : s / kRun * period + s % kRun;
  }
};

// A kernel that adds to the counts of the level's digits. One block for each kTile elements of the
// sample.
struct CountDigits {
  static constexpr KernelId kId = KernelId::kCountDigits;
  static constexpr int kPhases = 3;
  struct Arguments {
    TopKSource from;
    TopKSample sample;
    TopKLevel level;
    TopKScratch scratch;
    bool takes;  // whether this is the first full reading
    EncodeResult* result;
  };
  struct Shared {
    uint32_t digits[kMostDigits];
  };

  template <int kPhase>
  BDN_DEVICE static void Run(const Thread& at, const Arguments& a, Shared& shared) {
    if (a.scratch.state->skips != 0) return;
    if (HasMemory(a.from.source) && !AllFinite(a.result)) return;
    const uint32_t num_digits = 1u << a.level.Bits();
    if constexpr (kPhase == 0) {
      for (uint32_t d = at.thread; d < num_digits; d += at.threads) shared.digits[d] = 0;
    } else if constexpr (kPhase == 1) {
      const uint32_t prefix = a.scratch.state->prefix;
      const uint32_t begin = at.block * kTile;
      const uint32_t end = Least(a.sample.count, begin + kTile);
      for (uint32_t s = begin + at.thread; s < end; s += at.threads) {
        const uint32_t i = a.sample.Element(s);
        const float p = a.takes ? ReadFirst(a.from.source, i, a.result) : Read(a.from, i);
        const uint32_t key = MagnitudeBits(p) >> a.level.Shift();
        if (key >> a.level.Bits() != prefix) continue;
        AtomicAdd(&shared.digits[key & (num_digits - 1)], 1);
      }
    } else {
      for (uint32_t d = at.thread; d < num_digits; d += at.threads) {
        if (shared.digits[d] > 0) AtomicAdd(&a.scratch.digits[d], shared.digits[d]);
      }
    }
  }
};

// A kernel that decides the level's digit, and leaves the counts 0; after the last level it sets
// the threshold. One block.
struct DecideDigit {
  static constexpr KernelId kId = KernelId::kDecideDigit;
  static constexpr int kPhases = 3;
  static constexpr uint32_t kChunk = 32;
  struct Arguments {
    TopKLevel level;
    TopKScratch scratch;
    uint32_t wanted;  // the number at or above the threshold, at least 1
    bool all_ties;    // whether all elements equal to the key count
  };
  struct Shared {
    uint32_t digits[kMostDigits];
    uint32_t chunk[kMostDigits / kChunk];
  };

  template <int kPhase>
  BDN_DEVICE static void Run(const Thread& at, const Arguments& a, Shared& shared) {
    if (a.scratch.state->skips != 0) return;
    const uint32_t num_digits = 1u << a.level.Bits();
    if constexpr (kPhase == 0) {
      for (uint32_t d = at.thread; d < num_digits; d += at.threads) {
        shared.digits[d] = a.scratch.digits[d];
        a.scratch.digits[d] = 0;
      }
    } else if constexpr (kPhase == 1) {
      for (uint32_t c = at.thread; c < num_digits / kChunk; c += at.threads) {
        uint32_t sum = 0;
        for (uint32_t j = 0; j < kChunk; ++j) sum += shared.digits[c * kChunk + j];
        shared.chunk[c] = sum;
      }
    } else {
      if (at.thread != 0) return;
      TopKState& state = *a.scratch.state;
      uint32_t left = a.level.level == 0 ? a.wanted : state.left;
      uint32_t c = num_digits / kChunk - 1;
      for (; c > 0 && shared.chunk[c] < left; --c) left -= shared.chunk[c];
      uint32_t digit = c * kChunk + kChunk - 1;
      for (; digit > c * kChunk && shared.digits[digit] < left; --digit) {
        left -= shared.digits[digit];
      }
      state.prefix = state.prefix << a.level.Bits() | digit;
      state.left = left;
      if (a.level.level + 1 < kNumLevels) return;
      state.key = state.prefix;
      state.ties = a.all_ties ? ~uint32_t{0} : left;
      state.prefix = 0;
    }
  }
};

// A kernel that counts the elements of each tile that are above the key, and those equal to it. One
// block for each tile.
struct CountChosen {
  static constexpr KernelId kId = KernelId::kCountChosen;
  static constexpr int kPhases = 3;
  struct Arguments {
    TopKSource from;
    TopKScratch scratch;
    bool takes;  // whether this is the first full reading
    EncodeResult* result;
  };
  struct Shared {
    uint32_t above;
    uint32_t equal;
  };

  template <int kPhase>
  BDN_DEVICE static void Run(const Thread& at, const Arguments& a, Shared& shared) {
    if (a.scratch.state->skips != 0) return;
    if (HasMemory(a.from.source) && !AllFinite(a.result)) return;
    if constexpr (kPhase == 0) {
      if (at.thread == 0) shared = {0, 0};
    } else if constexpr (kPhase == 1) {
      const uint32_t key = a.scratch.state->key;
      const uint32_t begin = at.block * kTile;
      const uint32_t end = Least(a.from.source.n, begin + kTile);
      uint32_t above = 0;
      uint32_t equal = 0;
      for (uint32_t i = begin + at.thread; i < end; i += at.threads) {
        const float p = a.takes ? ReadFirst(a.from.source, i, a.result) : Read(a.from, i);
        above += MagnitudeBits(p) > key ? 1 : 0;
        equal += MagnitudeBits(p) == key ? 1 : 0;
      }
      AtomicAdd(&shared.above, above);
      AtomicAdd(&shared.equal, equal);
    } else {
      if (at.thread != 0) return;
      a.scratch.above[at.block] = shared.above;
      a.scratch.equal[at.block] = shared.equal;
      AtomicAdd(&a.scratch.state->reached, shared.above + shared.equal);
    }
  }
};

// A kernel that keeps the sample's threshold where at most `most` elements reach it. One thread.
struct JudgeSample {
  static constexpr KernelId kId = KernelId::kJudgeSample;
  static constexpr int kPhases = 1;
  struct Arguments {
    TopKState* state;
    uint32_t most;
  };
  struct Shared {};

  template <int kPhase>
  BDN_DEVICE static void Run(const Thread& at, const Arguments& a, Shared& /*shared*/) {
    if (at.thread == 0) a.state->skips = a.state->reached <= a.most ? 1 : 0;
  }
};

// The format of the values, as TopKValues of compressors/topk.h.
enum class TopKValueFormat : uint32_t { kFloat, kHalf, kTwoBit };

// The offsets of the parts of a payload.
struct TopKLayout {
  static constexpr uint32_t kShared = 64;  // values of two bits that share their magnitudes
  uint32_t num_blocks;
  uint32_t k;
  TopKValueFormat format;

  BDN_DEVICE uint64_t Indices() const { return 4 + 4 * uint64_t{num_blocks}; }
  BDN_DEVICE uint64_t IndicesEnd() const { return Indices() + 2 * uint64_t{k}; }
  BDN_DEVICE uint64_t Values() const { return IndicesEnd() + 2 * (k & 1); }
  BDN_DEVICE uint64_t ValuesEnd() const {
    if (format != TopKValueFormat::kTwoBit) return Values() + SizeOfPlain() * uint64_t{k};
    return Values() + 4 * uint64_t{RoundUpDivide(k, kShared)} + 8 * uint64_t{NumWords()};
  }
  BDN_DEVICE uint64_t Size() const {
    return ValuesEnd() + (format == TopKValueFormat::kHalf ? 2 * (k & 1) : 0);
  }

  // Returns the type of values that are written one by one.
  BDN_DEVICE ElementType PlainType() const {
    return format == TopKValueFormat::kHalf ? ElementType::kFloat16 : ElementType::kFloat32;
  }

  // Negative and Large return the offsets of the bitmaps of values of two bits, which come after
  // (low, high) of each kShared values.
  BDN_DEVICE uint64_t Negative() const {
    return Values() + 4 * uint64_t{RoundUpDivide(k, kShared)};
  }
  BDN_DEVICE uint64_t Large() const { return Negative() + 4 * uint64_t{NumWords()}; }

  BDN_DEVICE float Value(const uint8_t* payload, uint32_t v) const {
    const void* const values = payload + Values();
    if (format != TopKValueFormat::kTwoBit) return LoadElement(PlainType(), values, v);
    const uint32_t pair = v / kShared * 2 + (Bit(payload + Large(), v) ? 1 : 0);
    const float level = LoadElement(ElementType::kBFloat16, values, pair);
    return Bit(payload + Negative(), v) ? -level : level;
  }

 private:
  BDN_DEVICE uint32_t NumWords() const { return RoundUpDivide(k, 32); }
  BDN_DEVICE uint32_t SizeOfPlain() const { return format == TopKValueFormat::kHalf ? 2 : 4; }
  BDN_DEVICE static bool Bit(const uint8_t* words, uint32_t v) {
    return (reinterpret_cast<const uint32_t*>(words)[v / 32] >> (v % 32) & 1) != 0;
  }
};

// A kernel that turns the tiles' counts into positions, and writes all of the payload that is
// neither index nor value. One block.
struct PlaceChosen {
  static constexpr KernelId kId = KernelId::kPlaceChosen;
  static constexpr int kPhases = 4;
  struct Arguments {
    uint32_t n;
    TopKValueFormat format;
    TopKScratch scratch;
    uint8_t* payload;
    EncodeResult* result;
  };
  struct Shared {
    uint32_t above[kMostThreads];
    uint32_t equal[kMostThreads];
    uint32_t sent;
  };

  template <int kPhase>
  BDN_DEVICE static void Run(const Thread& at, const Arguments& a, Shared& shared) {
    // With a bad input nothing was counted.
    if (!AllFinite(a.result)) return;
    const uint32_t tiles = RoundUpDivide(a.n, kTile);
    const uint32_t chunk = RoundUpDivide(tiles, at.threads);
    const uint32_t begin = Least(tiles, at.thread * chunk);
    const uint32_t end = Least(tiles, begin + chunk);
    const uint32_t ties = a.scratch.state->ties;
    if constexpr (kPhase == 0) {
      uint32_t above = 0;
      uint32_t equal = 0;
      for (uint32_t t = begin; t < end; ++t) {
        above += a.scratch.above[t];
        equal += a.scratch.equal[t];
      }
      shared.above[at.thread] = above;
      shared.equal[at.thread] = equal;
    } else if constexpr (kPhase == 1) {
      if (at.thread != 0) return;
      uint32_t above = 0;
      uint32_t equal = 0;
      for (uint32_t t = 0; t < at.threads; ++t) {
        const uint32_t next_above = above + shared.above[t];
        const uint32_t next_equal = equal + shared.equal[t];
        shared.above[t] = above;
        shared.equal[t] = equal;
        above = next_above;
        equal = next_equal;
      }
      shared.sent = above + Least(equal, ties);
    } else if constexpr (kPhase == 2) {
      uint32_t above = shared.above[at.thread];
      uint32_t equal = shared.equal[at.thread];
      for (uint32_t t = begin; t < end; ++t) {
        const uint32_t next_above = above + a.scratch.above[t];
        const uint32_t next_equal = equal + a.scratch.equal[t];
        a.scratch.above[t] = above + Least(equal, ties);
        a.scratch.equal[t] = equal;
        above = next_above;
        equal = next_equal;
      }
    } else {
      const uint32_t num_blocks = RoundUpDivide(a.n, kTopKBlock);
      auto* const words = reinterpret_cast<uint32_t*>(a.payload);
      for (uint32_t b = at.thread; b < num_blocks; b += at.threads) {
        const uint32_t tile = b * (kTopKBlock / kTile);
        const uint32_t next = tile + kTopKBlock / kTile;
        words[1 + b] = (next < tiles ? a.scratch.above[next] : shared.sent) - a.scratch.above[tile];
      }
      if (at.thread == 0) WriteRest(a, {num_blocks, shared.sent, a.format}, words);
    }
  }

  BDN_DEVICE static void WriteRest(const Arguments& a, const TopKLayout& layout, uint32_t* words) {
    words[0] = layout.k;
    for (uint64_t at = layout.IndicesEnd(); at < layout.Values(); ++at) a.payload[at] = 0;
    for (uint64_t at = layout.ValuesEnd(); at < layout.Size(); ++at) a.payload[at] = 0;
    a.result->used_bytes = layout.Size();
  }
};

// A kernel that writes the indices and the values, and updates the residual or replica; with two
// bits a value, it writes the input of WriteSharedValues in place of values. One block for each
// tile.
struct WriteChosen {
  static constexpr KernelId kId = KernelId::kWriteChosen;
  static constexpr int kPhases = 4;
  static constexpr uint32_t kRun = 32;
  static constexpr uint32_t kRuns = kTile / kRun;
  struct Arguments {
    TopKSource from;
    TopKValueFormat format;
    TopKScratch scratch;
    uint8_t* payload;
    EncodeResult* result;
  };
  struct Shared {
    float p[kTile + kRuns];  // a run begins in another bank than the run before it
    uint32_t above[kRuns];   // as those of a tile in TopKScratch
    uint32_t equal[kRuns];
  };

  template <int kPhase>
  BDN_DEVICE static void Run(const Thread& at, const Arguments& a, Shared& shared) {
    if (!AllFinite(a.result)) return;
    const uint32_t key = a.scratch.state->key;
    const uint32_t begin = at.block * kTile;
    const uint32_t count = Least(a.from.source.n - begin, kTile);
    if constexpr (kPhase == 0) {
      for (uint32_t j = at.thread; j < count; j += at.threads) {
        shared.p[j + j / kRun] = Read(a.from, begin + j);
      }
    } else if constexpr (kPhase == 1) {
      for (uint32_t run = at.thread; run < kRuns; run += at.threads) {
        uint32_t above = 0;
        uint32_t equal = 0;
        for (uint32_t j = 0; j < kRun && run * kRun + j < count; ++j) {
          const uint32_t bits = MagnitudeBits(shared.p[run * (kRun + 1) + j]);
          above += bits > key ? 1 : 0;
          equal += bits == key ? 1 : 0;
        }
        shared.above[run] = above;
        shared.equal[run] = equal;
      }
    } else if constexpr (kPhase == 2) {
      if (at.thread == 0) PlaceRuns(a.scratch, at.block, shared);
    } else {
      for (uint32_t run = at.thread; run < kRuns; run += at.threads) {
        WriteRun(a, begin, run, count, key, shared);
      }
    }
  }

  BDN_DEVICE static void PlaceRuns(const TopKScratch& scratch, uint32_t tile, Shared& shared) {
    const uint32_t ties = scratch.state->ties;
    uint32_t equal = scratch.equal[tile];
    uint32_t above = scratch.above[tile] - Least(equal, ties);
    for (uint32_t run = 0; run < kRuns; ++run) {
      const uint32_t next_above = above + shared.above[run];
      const uint32_t next_equal = equal + shared.equal[run];
      shared.above[run] = above + Least(equal, ties);
      shared.equal[run] = equal;
      above = next_above;
      equal = next_equal;
    }
  }

  BDN_DEVICE static void WriteRun(const Arguments& a, uint32_t begin, uint32_t run, uint32_t count,
                                  uint32_t key, const Shared& shared) {
    const TopKLayout layout{RoundUpDivide(a.from.source.n, kTopKBlock),
                            *reinterpret_cast<const uint32_t*>(a.payload), a.format};
    auto* const indices = reinterpret_cast<uint16_t*>(a.payload + layout.Indices());
    void* const values = a.payload + layout.Values();
    const uint32_t ties = a.scratch.state->ties;
    uint32_t place = shared.above[run];
    uint32_t equal = shared.equal[run];
    for (uint32_t j = 0; j < kRun && run * kRun + j < count; ++j) {
      const float p = shared.p[run * (kRun + 1) + j];
      const uint32_t bits = MagnitudeBits(p);
      if (bits < key || (bits == key && equal++ >= ties)) continue;
      const uint32_t i = begin + run * kRun + j;
      indices[place] = static_cast<uint16_t>(i % kTopKBlock);
      if (a.format == TopKValueFormat::kTwoBit) {
        a.scratch.chosen[place] = i;
        a.scratch.p[place] = p;
      } else {
        StoreElement(layout.PlainType(), values, place, p);
        Leave(a.from.source, i, p, layout.Value(a.payload, place));
      }
      ++place;
    }
  }
};

// A kernel that writes values of two bits, and updates the residual or replica. One thread for each
// kShared values.
struct WriteSharedValues {
  static constexpr KernelId kId = KernelId::kWriteSharedValues;
  static constexpr int kPhases = 1;
  struct Arguments {
    Source source;
    TopKScratch scratch;
    uint8_t* payload;
    EncodeResult* result;
  };
  struct Shared {};

  template <int kPhase>
  BDN_DEVICE static void Run(const Thread& at, const Arguments& a, Shared& /*shared*/) {
    if (!AllFinite(a.result)) return;
    const TopKLayout layout{RoundUpDivide(a.source.n, kTopKBlock),
                            *reinterpret_cast<const uint32_t*>(a.payload),
                            TopKValueFormat::kTwoBit};
    const uint32_t begin = (at.block * at.threads + at.thread) * TopKLayout::kShared;
    if (begin < layout.k) WriteBlock(a, layout, begin);
  }

  BDN_DEVICE static void WriteBlock(const Arguments& a, const TopKLayout& layout, uint32_t begin) {
    const uint32_t end = Least(layout.k, begin + TopKLayout::kShared);
    double all = 0.0;
    for (uint32_t v = begin; v < end; ++v) all += Magnitude(a, v);
    const double mean = all / (end - begin);
    double low = 0.0;
    double high = 0.0;
    uint32_t num_high = 0;
    for (uint32_t first = begin; first < end; first += 32) {
      uint32_t negative = 0;
      uint32_t large = 0;
      for (uint32_t v = first; v < Least(end, first + 32); ++v) {
        const double magnitude = Magnitude(a, v);
        const bool is_large = magnitude > mean;
        (is_large ? high : low) += magnitude;
        num_high += is_large ? 1 : 0;
        negative |= (a.scratch.p[v] < 0.0f ? 1u : 0u) << (v - first);
        large |= (is_large ? 1u : 0u) << (v - first);
      }
      reinterpret_cast<uint32_t*>(a.payload + layout.Negative())[first / 32] = negative;
      reinterpret_cast<uint32_t*>(a.payload + layout.Large())[first / 32] = large;
    }
    const uint32_t pair = begin / TopKLayout::kShared * 2;
    StoreScale(a, layout, pair, low, end - begin - num_high);
    StoreScale(a, layout, pair + 1, high, num_high);
    for (uint32_t v = begin; v < end; ++v) {
      Leave(a.source, a.scratch.chosen[v], a.scratch.p[v], layout.Value(a.payload, v));
    }
  }

  BDN_DEVICE static double Magnitude(const Arguments& a, uint32_t v) {
    return FloatOf(MagnitudeBits(a.scratch.p[v]));
  }
  BDN_DEVICE static void StoreScale(const Arguments& a, const TopKLayout& layout, uint32_t at,
                                    double sum, uint32_t count) {
    const float mean = count == 0 ? 0.0f : static_cast<float>(sum / count);
    StoreElement(ElementType::kBFloat16, a.payload + layout.Values(), at, mean);
  }
};

// A kernel that sets y = +0 everywhere. One block for each tile.
struct FillZeros {
  static constexpr KernelId kId = KernelId::kFillZeros;
  static constexpr int kPhases = 1;
  struct Arguments {
    Target target;
  };
  struct Shared {};

  template <int kPhase>
  BDN_DEVICE static void Run(const Thread& at, const Arguments& a, Shared& /*shared*/) {
    const uint32_t begin = at.block * kTile;
    const uint32_t end = Least(a.target.n, begin + kTile);
    for (uint32_t i = begin + at.thread; i < end; i += at.threads) DeliverNothing(a.target, i);
  }
};

// A kernel that writes the elements that were sent over these zeros, or adds them. One block for
// each kTopKBlock elements.
struct DecodeTopK {
  static constexpr KernelId kId = KernelId::kDecodeTopK;
  static constexpr int kPhases = 3;
  struct Arguments {
    const uint8_t* payload;
    TopKValueFormat format;
    Target target;
  };
  struct Shared {
    uint32_t before;
  };

  template <int kPhase>
  BDN_DEVICE static void Run(const Thread& at, const Arguments& a, Shared& shared) {
    const auto* const words = reinterpret_cast<const uint32_t*>(a.payload);
    if constexpr (kPhase == 0) {
      if (at.thread == 0) shared.before = 0;
    } else if constexpr (kPhase == 1) {
      uint32_t before = 0;
      for (uint32_t b = at.thread; b < at.block; b += at.threads) before += words[1 + b];
      AtomicAdd(&shared.before, before);
    } else {
      const TopKLayout layout{RoundUpDivide(a.target.n, kTopKBlock), words[0], a.format};
      const auto* const indices = reinterpret_cast<const uint16_t*>(a.payload + layout.Indices());
      const uint32_t end = shared.before + words[1 + at.block];
      for (uint32_t v = shared.before + at.thread; v < end; v += at.threads) {
        Deliver(a.target, at.block * kTopKBlock + indices[v], layout.Value(a.payload, v));
      }
    }
  }
};

}  // namespace bdn::device_kernels

#endif  // BANDONEON_DEVICE_KERNELS_TOPK_SELECTION_H_
