#ifndef BANDONEON_DEVICE_KERNEL_IMAGE_H_
#define BANDONEON_DEVICE_KERNEL_IMAGE_H_

#include "common/base/bytes.h"

namespace bdn {

// The kernels as NVIDIA's driver loads them: a fat binary, part of this program. Empty where it was
// built without CUDA (BANDONEON_CUDA).
ByteSpan KernelImage();
// The oldest driver that takes it, as cuDriverGetVersion counts: 13000 is CUDA 13.0's.
int KernelImageVersion();

}  // namespace bdn

#endif  // BANDONEON_DEVICE_KERNEL_IMAGE_H_
