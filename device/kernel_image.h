#ifndef BANDONEON_DEVICE_KERNEL_IMAGE_H_
#define BANDONEON_DEVICE_KERNEL_IMAGE_H_

#include "common/base/bytes.h"

namespace bdn {

// Returns the kernels as NVIDIA's driver loads them: a fat binary, which is part of this program.
// It is empty in a program that was built without CUDA (BANDONEON_CUDA).
ByteSpan KernelImage();
// Returns the version of the oldest driver that takes the image, as cuDriverGetVersion counts:
// 13000 is that of CUDA 13.0.
int KernelImageVersion();

// Returns the same kernels as a text of PTX, which ends with a zero byte. It is for drivers that
// are older than the toolkit and for GPUs that the fat binary has no code for: the driver compiles
// the text when it loads it, which takes some seconds.
ByteSpan KernelText();
// Returns the version of the oldest driver that takes the text: that of the oldest PTX language
// with all that the kernels need.
int KernelTextVersion();

// Returns the least compute capability of the GPUs for which there is an image or a text: 75 is
// 7.5.
int KernelLeastCapability();

}  // namespace bdn

#endif  // BANDONEON_DEVICE_KERNEL_IMAGE_H_
