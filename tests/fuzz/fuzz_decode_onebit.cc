#include "tests/fuzz/decoder_property.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  constexpr const char* kSpecs[] = {"onebit", "onebit(block=32)", "onebit(block=256)",
                                    "onebit(scale=bf16)", "onebit(block=32,scale=bf16)"};
  return bdn::fuzz::DecodeOneInput(kSpecs, data, size);
}
