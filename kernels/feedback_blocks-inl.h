// The pass that kernels/feedback_blocks.h describes, except for the packing of codes. Included once
// for each target.

#if defined(BANDONEON_KERNELS_FEEDBACK_BLOCKS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef BANDONEON_KERNELS_FEEDBACK_BLOCKS_INL_H_
#undef BANDONEON_KERNELS_FEEDBACK_BLOCKS_INL_H_
#else
#define BANDONEON_KERNELS_FEEDBACK_BLOCKS_INL_H_
#endif

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "hwy/highway.h"
#include "kernels/bit_words-inl.h"
#include "kernels/feedback_blocks.h"
#include "kernels/lane_sums-inl.h"

HWY_BEFORE_NAMESPACE();
namespace bdn {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// The elements that are taken together. Their p take 4 KiB, which stay in the first-level cache,
// and they are so many blocks that no block waits for its own scale.
constexpr size_t kGroup = 1024;
static_assert(kGroup <= kSumRun);
// The elements that a loop handles in one go. Blocks are multiples of it.
constexpr size_t kChunk = 64;

// Computes p of the block that begins with element `begin`, without clamping, and the sum of |p| in
// four lanes.
HWY_INLINE void AccumulateBlock(const FeedbackBlocks& step, size_t block, size_t begin,
                                float* HWY_RESTRICT p, double* HWY_RESTRICT four) {
  const Tag d;
  const auto scale = hn::Set(d, step.options.scale);
  const auto decay = hn::Set(d, step.options.decay);
  Vector sum[kSumVectors];
  for (size_t v = 0; v < kSumVectors; ++v) sum[v] = hn::Zero(d);
  for (size_t i = 0; i < block; i += kChunk) {
    for (size_t j = 0; j < kChunk; j += kVectorLanes) {
      const size_t at = begin + i + j;
      const auto ag = hn::Mul(scale, hn::LoadU(d, step.g + at));
      const auto value = hn::Add(ag, hn::Mul(decay, hn::LoadU(d, step.residual + at)));
      hn::StoreU(value, d, p + i + j);
      auto& of_lanes = sum[j / kVectorLanes % kSumVectors];
      of_lanes = hn::Add(of_lanes, hn::Abs(value));
    }
  }
  JoinToFour(sum, four);
}

// Returns the scales as they will be decoded. They are rounded here, in registers: nothing can be
// packed before they are there, so a detour over memory would cost time.
template <class D>
HWY_INLINE hn::Vec<D> ScalesOf(D d, const FeedbackBlocks& step, hn::Vec<D> means) {
  const auto scales = hn::Min(hn::Mul(hn::Set(d, step.factor), means), hn::Set(d, step.most));
  if (!step.bfloat) return scales;
  const hn::RebindToUnsigned<D> du;
  // The limit is the largest finite bfloat16: rounding up would make greater scales infinite.
  const auto bits = hn::Min(hn::BitCast(du, scales), hn::Set(du, 0x7f7f0000u));
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1u));
  const auto rounded = hn::Add(hn::Add(bits, hn::Set(du, 0x7fffu)), odd);
  return hn::BitCast(d, hn::And(rounded, hn::Set(du, 0xffff0000u)));
}

template <typename T>
HWY_INLINE void StoreScale(const FeedbackBlocks& step, size_t b, T scale) {
  std::memcpy(static_cast<char*>(step.scales) + b * sizeof(T), &scale, sizeof(T));
}

// Finds the scales of the blocks from `first` on that have these sums, and writes them to `scales`
// and into the payload. Returns false where a sum is not finite.
HWY_INLINE bool FindScales(const FeedbackBlocks& step, const double* HWY_RESTRICT fours,
                           size_t first, size_t blocks, float* HWY_RESTRICT scales) {
  bool finite = true;
  MeansOfFours(fours, blocks, step.block, [&](auto d, size_t b, auto means) HWY_ATTR {
    finite &= hn::AllTrue(d, hn::Le(means, hn::Set(d, 0x1.fffffep127f)));
    hn::StoreU(ScalesOf(d, step, means), d, scales + b);
    for (size_t l = b; l < b + hn::MaxLanes(d); ++l) {
      if (step.bfloat) {
        const auto bits = std::bit_cast<uint32_t>(scales[l]);
        StoreScale(step, first + l, static_cast<uint16_t>(bits >> 16));
      } else {
        StoreScale(step, first + l, scales[l]);
      }
    }
  });
  return finite;
}

// Handles all whole blocks, and returns the number of elements done. `block` is step.block, as a
// constant or as a number.
template <class Block, class Pack>
HWY_INLINE size_t ForEachGroup(const FeedbackBlocks& given, Block block, const Pack& given_pack) {
  // These are local copies, so that the compiler knows that no store to the payload changes them.
  const FeedbackBlocks step = given;
  const Pack pack = given_pack;
  const size_t together = kGroup / block;
  const size_t whole = step.n / block;
  HWY_ALIGN float p[kGroup];
  HWY_ALIGN double fours[4 * kGroup / kChunk];
  HWY_ALIGN float scales[kGroup / kChunk];
  for (size_t first = 0; first < whole; first += together) {
    const size_t blocks = std::min(together, whole - first);
    for (size_t b = 0; b < blocks; ++b) {
      AccumulateBlock(step, block, (first + b) * block, p + b * block, fours + 4 * b);
    }
    if (!FindScales(step, fours, first, blocks, scales)) return first * block;
    for (size_t b = 0; b < blocks; ++b) {
      for (size_t i = b * block; i < (b + 1) * block; i += kChunk) {
        pack(p + i, first * block + i, scales[b]);
      }
    }
  }
  return whole * block;
}

// Calls pack(p, at, scale) for each kChunk elements, which begin with element `at`; pack leaves
// p - decoded in the residual. Returns the number of elements done.
template <class Pack>
HWY_INLINE size_t ForEachFeedbackChunk(const FeedbackBlocks& step, const Pack& pack) {
  if (step.block == kChunk) {
    return ForEachGroup(step, std::integral_constant<size_t, kChunk>(), pack);
  }
  if (step.block == 0 || step.block > kGroup || step.block % kChunk != 0) return 0;
  return ForEachGroup(step, step.block, pack);
}

}  // namespace HWY_NAMESPACE
}  // namespace bdn
HWY_AFTER_NAMESPACE();

#endif
