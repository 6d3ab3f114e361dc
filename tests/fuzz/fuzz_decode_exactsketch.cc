#include "tests/fuzz/decoder_property.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  constexpr const char* kSpecs[] = {"exactsketch(cells=0.05)", "exactsketch(cells=0.5)",
                                    "exactsketch(cells=2)"};
  return bdn::fuzz::DecodeOneInput(kSpecs, data, size);
}
