// Every kernel, compiled for GPUs and named bdn_ and its name. This is the only file that nvcc
// compiles.

#include "device/kernels/kernel_list.h"

namespace bdn::device_kernels {
namespace {

template <class Kernel>
__device__ __forceinline__ void RunOnDevice(const typename Kernel::Arguments& arguments,
                                            typename Kernel::Shared& shared) {
  RunPhases<Kernel, 0>({blockIdx.x, threadIdx.x, blockDim.x}, arguments, shared,
                       [] __device__() { __syncthreads(); });
}

}  // namespace

#define BDN_KERNEL(Name)                                              \
  extern "C" __global__ void __launch_bounds__(kMostThreads)          \
      bdn_##Name(const __grid_constant__ Name::Arguments arguments) { \
    __shared__ Name::Shared shared;                                   \
    RunOnDevice<Name>(arguments, shared);                             \
  }
BDN_FOR_EACH_KERNEL(BDN_KERNEL)
#undef BDN_KERNEL

}  // namespace bdn::device_kernels
