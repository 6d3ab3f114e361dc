#ifndef BANDONEON_DEVICE_KERNELS_KERNEL_ID_H_
#define BANDONEON_DEVICE_KERNELS_KERNEL_ID_H_

#include <cstdint>

// The list of all kernels. A new one needs a line here and an include in kernel_list.h.
#define BDN_FOR_EACH_KERNEL(DO) \
  DO(BeginEncode)               \
  DO(CheckInput)                \
  DO(EncodeFloats)              \
  DO(DecodeFloats)              \
  DO(SumRuns)                   \
  DO(ScaleBlocks)               \
  DO(EncodeOneBit)              \
  DO(DecodeOneBit)              \
  DO(EncodeTwoBit)              \
  DO(DecodeTwoBit)              \
  DO(EncodeSign)                \
  DO(EndSign)                   \
  DO(DecodeSign)                \
  DO(IntegerMagnitudes)         \
  DO(EncodeIntegers)            \
  DO(DecodeIntegers)            \
  DO(LargestMagnitude)          \
  DO(DitherNorm)                \
  DO(EncodeDither)              \
  DO(DecodeDither)              \
  DO(GatherDrawn)               \
  DO(TakeDrawn)                 \
  DO(DecodeDrawn)               \
  DO(CountDigits)               \
  DO(DecideDigit)               \
  DO(CountChosen)               \
  DO(JudgeSample)               \
  DO(PlaceChosen)               \
  DO(WriteChosen)               \
  DO(WriteSharedValues)         \
  DO(FillZeros)                 \
  DO(DecodeTopK)                \
  DO(UndoStep)                  \
  DO(OweDecoded)

namespace bdn::device_kernels {

#define BDN_KERNEL_ID(Name) k##Name,
// The number of a kernel.
enum class KernelId : uint32_t { BDN_FOR_EACH_KERNEL(BDN_KERNEL_ID) };
#undef BDN_KERNEL_ID

#define BDN_KERNEL_COUNT(Name) +1
inline constexpr uint32_t kNumKernels = 0 BDN_FOR_EACH_KERNEL(BDN_KERNEL_COUNT);
#undef BDN_KERNEL_COUNT

}  // namespace bdn::device_kernels

#endif  // BANDONEON_DEVICE_KERNELS_KERNEL_ID_H_
