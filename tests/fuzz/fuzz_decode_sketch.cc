#include "tests/fuzz/decoder_property.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  constexpr const char* kSpecs[] = {"sketch(columns=0.1)", "sketch(rows=1,columns=3)",
                                    "sketch(rows=7,columns=20)"};
  return bdn::fuzz::DecodeOneInput(kSpecs, data, size);
}
