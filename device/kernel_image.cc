#include "device/kernel_image.h"

#ifdef BDN_KERNEL_IMAGE
// The bytes of two files, the image and the text, each between two names. The assembler reads them,
// so that the compiler need not. The driver expects a zero after the text.
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
asm(R"(
  .pushsection .rodata
  .globl bdn_kernel_text
  .globl bdn_kernel_text_end
  .hidden bdn_kernel_text
  .hidden bdn_kernel_text_end
bdn_kernel_text:
  .incbin ")" BDN_KERNEL_TEXT R"("
  .byte 0
bdn_kernel_text_end:
  .popsection
)");
extern "C" const std::byte bdn_kernel_image[];
extern "C" const std::byte bdn_kernel_image_end[];
extern "C" const std::byte bdn_kernel_text[];
extern "C" const std::byte bdn_kernel_text_end[];
#endif

namespace bdn {

#ifdef BDN_KERNEL_IMAGE
ByteSpan KernelImage() { return {bdn_kernel_image, bdn_kernel_image_end}; }
ByteSpan KernelText() { return {bdn_kernel_text, bdn_kernel_text_end}; }
#else
ByteSpan KernelImage() { return {}; }
ByteSpan KernelText() { return {}; }
#endif

int KernelImageVersion() { return BDN_KERNEL_IMAGE_VERSION; }
int KernelLeastCapability() { return BDN_KERNEL_LEAST_CAPABILITY; }
int KernelTextVersion() { return 11000; }  // PTX 7.0, as cmake/BandoneonCuda.cmake writes it

}  // namespace bdn
