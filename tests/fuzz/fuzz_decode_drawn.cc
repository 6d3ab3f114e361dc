#include "tests/fuzz/decoder_property.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  constexpr const char* kSpecs[] = {
      "randomk(ratio=0.01)", "randomk(ratio=0.5)", "randomk(ratio=0.3,unbiased=true)",
      "randomk(ratio=1)",    "blocks(ratio=0.1)",  "blocks(ratio=0.5,size=7)"};
  return bdn::fuzz::DecodeOneInput(kSpecs, data, size);
}
