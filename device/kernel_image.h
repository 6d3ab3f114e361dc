#ifndef BANDONEON_DEVICE_KERNEL_IMAGE_H_
#define BANDONEON_DEVICE_KERNEL_IMAGE_H_

#include "common/base/bytes.h"

namespace bdn {

// The kernels as NVIDIA's driver loads them: a fat binary, part of this program. Empty where it was
// built without CUDA (BANDONEON_CUDA).
ByteSpan KernelImage();
// The oldest driver that takes it, as cuDriverGetVersion counts: 13000 is CUDA 13.0's.
int KernelImageVersion();

// The same kernels as a text of PTX, which ends with a zero, for drivers that are older than the toolkit and for
// GPUs that the fat binary has no code for: the driver compiles it when it is loaded, which takes some seconds.
ByteSpan KernelText();
// The oldest driver that takes it: that of the oldest language that has all that the kernels need.
int KernelTextVersion();

// The least compute capability of GPUs that have either: 75 is 7.5.
int KernelLeastCapability();

}  // namespace bdn

#endif  // BANDONEON_DEVICE_KERNEL_IMAGE_H_
