#include "tests/fuzz/decoder_property.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  constexpr const char* kSpecs[] = {"twobit", "twobit(block=32)", "twobit(block=256)"};
  return bdn::fuzz::DecodeOneInput(kSpecs, data, size);
}
