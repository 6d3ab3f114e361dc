#ifndef BANDONEON_DEVICE_KERNELS_PORTABLE_H_
#define BANDONEON_DEVICE_KERNELS_PORTABLE_H_

#include <bit>
#include <cstdint>

// What lets one text be a CUDA kernel and a function of the host. Nothing else in the tree asks
// which of the two it is compiled for.
//
// A kernel is a struct with
//   Arguments                              plain data, copied to the device with the launch
//   Shared                                 what the threads of a block share; its first contents
//                                          are anything
//   kPhases                                how many phases it has
//   Run<phase>(thread, arguments, shared)  what one thread does in a phase
// All threads of a block end a phase before one begins the next; blocks know nothing of each other.
// What it leaves does not depend on the number of threads, nor on the order of threads or blocks.

#ifdef __CUDACC__
#define BDN_DEVICE __host__ __device__ __forceinline__
// Before a loop over an array that is to lie in registers.
#define BDN_UNROLL _Pragma("unroll")
#else
#define BDN_DEVICE inline
#define BDN_UNROLL
#endif

namespace bdn::device_kernels {

// The most threads of a block.
inline constexpr uint32_t kMostThreads = 256;
// The elements that a block works on: a multiple of what codecs take together.
inline constexpr uint32_t kTile = 4096;

// Which thread of which block this is, and how many the block has.
struct Thread {
  uint32_t block;
  uint32_t thread;
  uint32_t threads;
};

BDN_DEVICE uint32_t BitsOf(float value) { return std::bit_cast<uint32_t>(value); }
BDN_DEVICE float FloatOf(uint32_t bits) { return std::bit_cast<float>(bits); }
BDN_DEVICE uint32_t MagnitudeBits(float value) { return BitsOf(value) & 0x7fffffffu; }
// Neither NaN nor infinite.
BDN_DEVICE bool IsFinite(float value) { return MagnitudeBits(value) < 0x7f800000u; }

template <typename T>
BDN_DEVICE T Least(T a, T b) {
  return b < a ? b : a;
}
template <typename T>
BDN_DEVICE T Most(T a, T b) {
  return a < b ? b : a;
}
BDN_DEVICE uint32_t RoundUpDivide(uint32_t a, uint32_t b) { return a / b + (a % b != 0 ? 1 : 0); }

// *to becomes the least (the greatest, the sum, the union) of itself and `value`, whoever else does
// the same meanwhile: all of them give the same in any order.
#ifdef __CUDA_ARCH__
BDN_DEVICE void AtomicLeast(uint64_t* to, uint64_t value) {
  atomicMin(reinterpret_cast<unsigned long long*>(to), value);
}
BDN_DEVICE void AtomicMost(uint32_t* to, uint32_t value) { atomicMax(to, value); }
BDN_DEVICE void AtomicAdd(uint32_t* to, uint32_t value) { atomicAdd(to, value); }
BDN_DEVICE void AtomicOr(uint32_t* to, uint32_t value) { atomicOr(to, value); }
#else
BDN_DEVICE void AtomicLeast(uint64_t* to, uint64_t value) {
  uint64_t old = __atomic_load_n(to, __ATOMIC_RELAXED);
  while (value < old &&
         !__atomic_compare_exchange_n(to, &old, value, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
}
BDN_DEVICE void AtomicMost(uint32_t* to, uint32_t value) {
  uint32_t old = __atomic_load_n(to, __ATOMIC_RELAXED);
  while (old < value &&
         !__atomic_compare_exchange_n(to, &old, value, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
}
BDN_DEVICE void AtomicAdd(uint32_t* to, uint32_t value) {
  __atomic_fetch_add(to, value, __ATOMIC_RELAXED);
}
BDN_DEVICE void AtomicOr(uint32_t* to, uint32_t value) {
  __atomic_fetch_or(to, value, __ATOMIC_RELAXED);
}
#endif

}  // namespace bdn::device_kernels

#endif  // BANDONEON_DEVICE_KERNELS_PORTABLE_H_
