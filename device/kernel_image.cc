#include "device/kernel_image.h"

#ifdef BDN_KERNEL_IMAGE
// The bytes of the file, between two names.
asm(R"(
  .pushsection .rodata
  .balign 64
  .globl bdn_kernel_image
  .globl bdn_kernel_image_end
  .hidden bdn_kernel_image
  .hidden bdn_kernel_image_end
bdn_kernel_image:
  .incbin ")" BDN_KERNEL_IMAGE R"("
bdn_kernel_image_end:
  .popsection
)");
extern "C" const std::byte bdn_kernel_image[];
extern "C" const std::byte bdn_kernel_image_end[];
#endif

namespace bdn {

#ifdef BDN_KERNEL_IMAGE
ByteSpan KernelImage() { return {bdn_kernel_image, bdn_kernel_image_end}; }
#else
ByteSpan KernelImage() { return {}; }
#endif

int KernelImageVersion() { return BDN_KERNEL_IMAGE_VERSION; }

}  // namespace bdn
