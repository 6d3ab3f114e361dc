#ifndef BANDONEON_DEVICE_KERNELS_PORTABLE_H_
#define BANDONEON_DEVICE_KERNELS_PORTABLE_H_

#include <bit>
#include <cstdint>

// The language in which one text is a CUDA kernel and a function of the host. Nothing else in the
// tree asks which of the two it is compiled for.
//
// A kernel is a struct with
//   Arguments                              plain data, copied to the device with the launch
//   Shared                                 data that the threads of a block share; its first
//                                          contents are anything
//   kPhases                                the number of its phases
//   Run<phase>(thread, arguments, shared)  the work of one thread in a phase
// All threads of a block end a phase before one begins the next; blocks know nothing of each other.
// The bytes that a kernel leaves do not depend on the number of threads, nor on the order of
// threads or blocks.

#ifdef __CUDACC__
#define BDN_DEVICE __host__ __device__ __forceinline__
// BDN_UNROLL stands before a loop over an array that must lie in registers.
#define BDN_UNROLL _Pragma("unroll")
#else
#define BDN_DEVICE inline
#define BDN_UNROLL
#endif

namespace bdn::device_kernels {

// The largest number of threads in a block.
inline constexpr uint32_t kMostThreads = 256;
// The number of elements that a block works on: a multiple of the elements that codecs take
// together.
inline constexpr uint32_t kTile = 4096;

// The position of a thread: its block, its number in the block, and the number of the block's
// threads.
struct Thread {
  uint32_t block;
  uint32_t thread;
  uint32_t threads;
};

BDN_DEVICE uint32_t BitsOf(float value) { return std::bit_cast<uint32_t>(value); }
BDN_DEVICE float FloatOf(uint32_t bits) { return std::bit_cast<float>(bits); }
BDN_DEVICE uint32_t MagnitudeBits(float value) { return BitsOf(value) & 0x7fffffffu; }
// Returns whether `value` is neither NaN nor infinite.
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

// Set *to to the least (the greatest, the sum, the union) of itself and `value`, while other
// threads may do the same: all of these operations give the same result in any order.
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
