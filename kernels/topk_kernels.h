#ifndef BANDONEON_KERNELS_TOPK_KERNELS_H_
#define BANDONEON_KERNELS_TOPK_KERNELS_H_

#include <cstddef>
#include <cstdint>

namespace bdn {

// CollectAtLeast may write this many elements past `capacity`.
inline constexpr size_t kCollectSlack = 32;

// Writes index base + i and value p[i] of every element with (bits of p[i] without the sign) >=
// least_key, in order, and returns how many there are. Where these are more than `capacity` it may
// stop early: then it returns some number above `capacity` and at most capacity + kCollectSlack.
// One pass. REQUIRES: index and value have room for capacity + kCollectSlack.
size_t CollectAtLeast(const float* p, size_t n, uint32_t base, uint32_t least_key, size_t capacity,
                      uint32_t* index, float* value);

}  // namespace bdn

#endif  // BANDONEON_KERNELS_TOPK_KERNELS_H_
