#ifndef BANDONEON_TESTS_REFERENCE_CODEC_REFERENCE_H_
#define BANDONEON_TESTS_REFERENCE_CODEC_REFERENCE_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

// A second form of every codec, written from the layouts in compressors/*.h alone: plain, slow, one
// element at a time, and without a line of the code that it checks.

namespace bdn::reference {

using Bytes = std::vector<uint8_t>;

struct Codec {
  std::string name;  // none, fp16, bf16, onebit, topk
  uint64_t block = 0;
  double ratio = 0;
};

// The payload of p, which is finite and already scaled.
Bytes Encode(const Codec& codec, const std::vector<float>& p);
// The n elements a valid payload stands for.
std::vector<float> Decode(const Codec& codec, const Bytes& payload, size_t n);

// `none` of float64.
Bytes EncodeFloat64(const std::vector<double>& p);

}  // namespace bdn::reference

#endif  // BANDONEON_TESTS_REFERENCE_CODEC_REFERENCE_H_
