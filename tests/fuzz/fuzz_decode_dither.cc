#include "tests/fuzz/decoder_property.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  constexpr const char* kSpecs[] = {"dither",
                                    "dither(levels=0)",
                                    "dither(levels=1,norm=l2)",
                                    "dither(levels=4)",
                                    "dither(levels=127)",
                                    "dither(kind=natural)",
                                    "dither(levels=31,kind=natural,norm=l2)"};
  return bdn::fuzz::DecodeOneInput(kSpecs, data, size);
}
