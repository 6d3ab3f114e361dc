#include "tests/fuzz/decoder_property.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  constexpr const char* kSpecs[] = {"topk(ratio=0.001)",
                                    "topk(ratio=0.01)",
                                    "topk(ratio=0.5)",
                                    "topk(ratio=1)",
                                    "topk(ratio=0.1,select=sampled)",
                                    "topk(ratio=0.1,values=fp16)",
                                    "topk(ratio=0.1,values=twobit)",
                                    "topk(ratio=0.5,select=sampled,values=twobit)"};
  return bdn::fuzz::DecodeOneInput(kSpecs, data, size);
}
