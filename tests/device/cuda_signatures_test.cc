// The declarations of device/cuda_driver.h, compared with NVIDIA's own header. All of it is decided
// when it is compiled.

#include <cuda.h>

#include <type_traits>

#include "device/cuda_driver.h"
#include "gtest/gtest.h"

namespace bdn {
namespace {

// Handles and addresses are declared as void* and uint64_t: the way in which an argument is passed
// must agree.
enum class Kind { kPointer, kInteger, kOther };

template <class T>
constexpr Kind kKindOf = std::is_pointer_v<T>                         ? Kind::kPointer
                         : std::is_integral_v<T> || std::is_enum_v<T> ? Kind::kInteger
                                                                      : Kind::kOther;

template <class Ours, class Theirs>
constexpr bool kIsPassedAlike = sizeof(Ours) == sizeof(Theirs) && kKindOf<Ours> == kKindOf<Theirs>;

template <class Ours, class Theirs>
struct IsCalledAlike : std::false_type {};
template <class R, class... P, class S, class... Q>
struct IsCalledAlike<R (*)(P...), S(Q...)> {
  static constexpr bool Compare() {
    if constexpr (sizeof...(P) != sizeof...(Q)) {
      return false;
    } else {
      return sizeof(R) == sizeof(S) && (kIsPassedAlike<P, Q> && ...);
    }
  }
  static constexpr bool value = Compare();
};

#define BDN_CHECK_SIGNATURE(Name, Symbol)                                           \
  static_assert(IsCalledAlike<decltype(CudaDriver::Name), decltype(Symbol)>::value, \
                #Symbol " has other parameters");
BDN_FOR_EACH_CUDA_FUNCTION(BDN_CHECK_SIGNATURE)
#if CUDA_VERSION >= 12040
BDN_CHECK_SIGNATURE(FuncLoad, cuFuncLoad)
#endif
#undef BDN_CHECK_SIGNATURE

// The numbers of device/cuda_device.cc and device/cuda_driver.cc.
static_assert(CU_STREAM_NON_BLOCKING == 1);
static_assert(CU_EVENT_BLOCKING_SYNC == 1 && CU_EVENT_DISABLE_TIMING == 2);
static_assert(CU_STREAM_CAPTURE_STATUS_NONE == 0 && CU_STREAM_CAPTURE_MODE_RELAXED == 2);
static_assert(CU_MEMHOSTALLOC_PORTABLE == 1);
static_assert(CU_FUNC_ATTRIBUTE_NUM_REGS == 4);
static_assert(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR == 75);
static_assert(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR == 76);
static_assert(CUDA_ERROR_OUT_OF_MEMORY == 2 && CUDA_ERROR_NOT_READY == 600);
static_assert(CUDA_ERROR_OPERATING_SYSTEM == 304);
static_assert(CUDA_ERROR_NO_DEVICE == 100 && CUDA_ERROR_INVALID_DEVICE == 101);
static_assert(CUDA_ERROR_NO_BINARY_FOR_GPU == 209 && CUDA_ERROR_UNSUPPORTED_PTX_VERSION == 222);

TEST(CudaDriver, IsCalledAsItsHeaderSays) { SUCCEED() << "it was compiled"; }

}  // namespace
}  // namespace bdn
