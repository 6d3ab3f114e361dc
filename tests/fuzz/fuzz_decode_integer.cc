#include "tests/fuzz/decoder_property.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  constexpr const char* kSpecs[] = {"int8",
                                    "int4",
                                    "int2",
                                    "int8(hadamard=32,round=nearest)",
                                    "int4(group=32,hadamard=32)",
                                    "int2(group=64,round=nearest)"};
  return bdn::fuzz::DecodeOneInput(kSpecs, data, size);
}
