#include "kernels/topk_kernels.h"

#include <bit>
#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/topk_kernels.cc"
#include "hwy/foreach_target.h"
// The include above compiles this file once for each instruction set. It comes before all others of
// Highway, which a comment between them keeps so when they are sorted.
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace bdn {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

constexpr size_t kGroup = 32;
static_assert(kGroup == kCollectSlack);

using KeyTag = hn::CappedTag<int32_t, 16>;
constexpr size_t kKeyLanes = hn::MaxLanes(KeyTag());

// Returns a word whose bit j is 1 where the key of p[j] is above `below`. Keys are below 2^31, so a
// signed comparison does.
HWY_INLINE uint32_t GroupBits(const float* HWY_RESTRICT p, hn::Vec<KeyTag> below) {
  const KeyTag d;
  const auto magnitude = hn::Set(d, 0x7fffffff);
  uint32_t group = 0;
  for (size_t i = 0; i < kGroup; i += kKeyLanes) {
    const auto bits = hn::BitCast(d, hn::LoadU(hn::RebindToFloat<KeyTag>(), p + i));
    uint8_t bytes[8] = {};
    hn::StoreMaskBits(d, hn::Gt(hn::And(bits, magnitude), below), bytes);
    uint32_t mask;
    std::memcpy(&mask, bytes, sizeof(mask));
    group |= mask << i;
  }
  return group;
}

size_t CollectAtLeastKernel(const float* HWY_RESTRICT p, size_t n, uint32_t base,
                            uint32_t least_key, size_t capacity, uint32_t* HWY_RESTRICT index,
                            float* HWY_RESTRICT value) {
  // For a least_key of 0 this is -1, and every key is above it.
  const auto below = hn::Set(KeyTag(), static_cast<int32_t>(least_key) - 1);
  size_t size = 0;
  size_t i = 0;
  // The capacity is checked once for each group, so a group may write up to kCollectSlack elements
  // past it.
  for (; i + kGroup <= n && size <= capacity; i += kGroup) {
    for (uint32_t group = GroupBits(p + i, below); group != 0; group &= group - 1) {
      const size_t at = i + static_cast<size_t>(std::countr_zero(group));
      index[size] = base + static_cast<uint32_t>(at);
      value[size++] = p[at];
    }
  }
  for (; i < n && size <= capacity; ++i) {
    if ((std::bit_cast<uint32_t>(p[i]) & 0x7fffffffu) < least_key) continue;
    index[size] = base + static_cast<uint32_t>(i);
    value[size++] = p[i];
  }
  return size;
}

}  // namespace HWY_NAMESPACE
}  // namespace bdn
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace bdn {

HWY_EXPORT(CollectAtLeastKernel);

size_t CollectAtLeast(const float* p, size_t n, uint32_t base, uint32_t least_key, size_t capacity,
                      uint32_t* index, float* value) {
  return HWY_DYNAMIC_DISPATCH(CollectAtLeastKernel)(p, n, base, least_key, capacity, index, value);
}

}  // namespace bdn
#endif  // HWY_ONCE
