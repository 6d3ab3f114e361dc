#ifndef BANDONEON_DEVICE_KERNELS_DRAWN_VALUES_H_
#define BANDONEON_DEVICE_KERNELS_DRAWN_VALUES_H_

#include <cstdint>

#include "device/kernels/draw_words.h"
#include "device/kernels/kernel_id.h"
#include "device/kernels/portable.h"
#include "device/kernels/source_elements.h"

// The kernels of randomk and blocks, whose draw and payload compressors/drawn.h defines.

namespace bdn::device_kernels {

// The options of the codec.
struct DrawnFormat {
  double ratio;
  uint32_t size;  // elements of a block
  float factor;   // f
};

// The blocks that a draw chooses of n elements.
struct DrawnChoice {
  DrawKeys draw;
  uint32_t size;
  uint32_t n;
  uint32_t num_blocks;  // B
  uint32_t count;       // K
  uint32_t phase;
  uint32_t from;  // drawn blocks of the strata from here on wrap round, and come first

  BDN_DEVICE static DrawnChoice Of(DrawKeys draw, const DrawnFormat& format, uint32_t n) {
    DrawnChoice choice{draw, format.size, n, RoundUpDivide(n, format.size), 0, 0, 0};
    const double u = draw.Word(0) * 0x1p-32;
    const double wanted = format.ratio * static_cast<double>(choice.num_blocks) + u;
    choice.count = Least(choice.num_blocks, static_cast<uint32_t>(wanted));
    if (choice.count == 0) return choice;
    choice.phase = choice.ScaledWord(1, choice.num_blocks);
    choice.from = choice.count;
    if (choice.phase == 0) return choice;
    const uint32_t least = choice.num_blocks - choice.phase;
    choice.from = choice.StratumOf(least);
    if (choice.Drawn(choice.from) < least) ++choice.from;
    return choice;
  }

  BDN_DEVICE uint32_t ScaledWord(uint32_t j, uint32_t below) const {
    return static_cast<uint32_t>(uint64_t{draw.Word(j)} * below >> 32);
  }
  // Returns first[j] of compressors/drawn.h.
  BDN_DEVICE uint32_t First(uint32_t j) const {
    return static_cast<uint32_t>(uint64_t{j} * num_blocks / count);
  }
  // Returns x[j] of compressors/drawn.h.
  BDN_DEVICE uint32_t Drawn(uint32_t j) const {
    return First(j) + ScaledWord(2 + j, First(j + 1) - First(j));
  }
  // Returns the j with first[j] <= x < first[j + 1].
  BDN_DEVICE uint32_t StratumOf(uint32_t x) const {
    return static_cast<uint32_t>(((uint64_t{x} + 1) * count - 1) / num_blocks);
  }

  // Returns the t-th of the drawn blocks, rising.
  BDN_DEVICE uint32_t Block(uint32_t t) const {
    const uint32_t wrapped = count - from;
    return t < wrapped ? Drawn(from + t) + phase - num_blocks : Drawn(t - wrapped) + phase;
  }
  // Returns the rank of a block among the drawn blocks, or count where it is not drawn.
  BDN_DEVICE uint32_t RankOf(uint32_t block) const {
    if (count == 0) return count;
    const uint32_t x = block < phase ? block + num_blocks - phase : block - phase;
    const uint32_t j = StratumOf(x);
    if (Drawn(j) != x) return count;
    return j >= from ? j - from : j + (count - from);
  }
  // Returns the index of element i among the values, or kNotDrawn.
  static constexpr uint32_t kNotDrawn = ~uint32_t{0};
  BDN_DEVICE uint32_t ValueOf(uint32_t i) const {
    const uint32_t rank = RankOf(i / size);
    return rank == count ? kNotDrawn : rank * size + i % size;
  }
  // Returns the number of values. Only the last block can be short.
  BDN_DEVICE uint32_t NumValues() const {
    const bool has_short = n % size != 0 && RankOf(num_blocks - 1) != count;
    return has_short ? (count - 1) * size + n % size : count * size;
  }
};

// The choice, which one thread of a block makes for all of them.
struct ChoiceOfBlock {
  DrawnChoice choice;
};

// Returns d of compressors/drawn.h for a drawn element.
BDN_DEVICE float SentOf(float p, float factor) { return ClampToFinite(p * factor) + 0.0f; }

// A kernel for a source without residual or replica. It reads the drawn elements and no others. One
// block for each kTile values, at least one.
struct GatherDrawn {
  static constexpr KernelId kId = KernelId::kGatherDrawn;
  static constexpr int kPhases = 2;
  struct Arguments {
    Source source;
    DrawnFormat format;
    DrawKeys draw;
    uint32_t* payload;
    EncodeResult* result;
  };
  using Shared = ChoiceOfBlock;

  template <int kPhase>
  BDN_DEVICE static void Run(const Thread& at, const Arguments& a, Shared& shared) {
    if constexpr (kPhase == 0) {
      if (at.thread == 0) shared.choice = DrawnChoice::Of(a.draw, a.format, a.source.n);
    } else {
      const DrawnChoice& choice = shared.choice;
      const uint32_t num_values = choice.NumValues();
      if (at.block == 0 && at.thread == 0) WriteKeys(a.draw, num_values, a.payload, a.result);
      auto* const values = reinterpret_cast<float*>(a.payload + 2);
      const uint32_t begin = at.block * kTile;
      const uint32_t end = Least(num_values, begin + kTile);
      for (uint32_t v = begin + at.thread; v < end; v += at.threads) {
        const uint32_t i = choice.Block(v / choice.size) * choice.size + v % choice.size;
        const float p = Peek(a.source, i);
        if (!IsFinite(p)) NoteNonFinite(a.source, i, a.result);
        values[v] = SentOf(p, a.format.factor);
      }
    }
  }

  BDN_DEVICE static void WriteKeys(DrawKeys draw, uint32_t num_values, uint32_t* payload,
                                   EncodeResult* result) {
    payload[0] = draw.k0;
    payload[1] = draw.k1;
    result->used_bytes = 8 + 4 * uint64_t{num_values};
  }
};

// A kernel for a source with a residual or replica. It writes the same payload, and updates the
// residual or replica for every element. One pass; one block for each tile.
struct TakeDrawn {
  static constexpr KernelId kId = KernelId::kTakeDrawn;
  static constexpr int kPhases = 2;
  using Arguments = GatherDrawn::Arguments;
  using Shared = ChoiceOfBlock;

  template <int kPhase>
  BDN_DEVICE static void Run(const Thread& at, const Arguments& a, Shared& shared) {
    if (!AllFinite(a.result)) return;
    if constexpr (kPhase == 0) {
      if (at.thread == 0) shared.choice = DrawnChoice::Of(a.draw, a.format, a.source.n);
    } else {
      const DrawnChoice& choice = shared.choice;
      if (at.block == 0 && at.thread == 0) {
        GatherDrawn::WriteKeys(a.draw, choice.NumValues(), a.payload, a.result);
      }
      auto* const values = reinterpret_cast<float*>(a.payload + 2);
      const uint32_t begin = at.block * kTile;
      const uint32_t end = Least(a.source.n, begin + kTile);
      for (uint32_t i = begin + at.thread; i < end; i += at.threads) {
        const float p = Take(a.source, i);
        const uint32_t v = choice.ValueOf(i);
        if (v == DrawnChoice::kNotDrawn) {
          LeaveAll(a.source, i, p);
          continue;
        }
        values[v] = SentOf(p, a.format.factor);
        Leave(a.source, i, p, values[v]);
      }
    }
  }
};

// A kernel that decodes. One pass over y; one block for each tile.
struct DecodeDrawn {
  static constexpr KernelId kId = KernelId::kDecodeDrawn;
  static constexpr int kPhases = 2;
  struct Arguments {
    DrawnFormat format;
    const uint32_t* payload;
    Target target;
  };
  using Shared = ChoiceOfBlock;

  template <int kPhase>
  BDN_DEVICE static void Run(const Thread& at, const Arguments& a, Shared& shared) {
    if constexpr (kPhase == 0) {
      if (at.thread != 0) return;
      shared.choice = DrawnChoice::Of({a.payload[0], a.payload[1]}, a.format, a.target.n);
    } else {
      const auto* const values = reinterpret_cast<const float*>(a.payload + 2);
      const uint32_t begin = at.block * kTile;
      const uint32_t end = Least(a.target.n, begin + kTile);
      for (uint32_t i = begin + at.thread; i < end; i += at.threads) {
        const uint32_t v = shared.choice.ValueOf(i);
        v == DrawnChoice::kNotDrawn ? DeliverNothing(a.target, i) : Deliver(a.target, i, values[v]);
      }
    }
  }
};

}  // namespace bdn::device_kernels

#endif  // BANDONEON_DEVICE_KERNELS_DRAWN_VALUES_H_
