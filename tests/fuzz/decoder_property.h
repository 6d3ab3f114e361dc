#ifndef BANDONEON_TESTS_FUZZ_DECODER_PROPERTY_H_
#define BANDONEON_TESTS_FUZZ_DECODER_PROPERTY_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "compressors/codec.h"

// What the fuzz targets of the decoders have in common.

namespace bdn::fuzz {

// Aborts, which is a finding.
void Check(bool holds);

// Takes an input apart, front to back; zeros once it is used up.
class InputReader {
 public:
  InputReader(const uint8_t* data, size_t size) : left_(data, size) {}
  bool empty() const { return left_.empty(); }
  uint8_t Byte();
  // Mostly up to 1023 elements; now and then 65536 more, for what is laid out in blocks.
  size_t NumElements();
  std::vector<uint8_t> Rest() const { return {left_.begin(), left_.end()}; }

 private:
  std::span<const uint8_t> left_;
};

// The codec of a spec, which is right.
std::shared_ptr<const Codec> CodecOf(const std::string& spec);

// `payload` of n elements is refused, or decodes inside memory of exactly the right size, to finite
// numbers, as DecodeAdd does, into every type, and what was decoded encodes again.
void CheckDecoder(const Codec& codec, const std::vector<uint8_t>& payload, size_t n, DType dtype);

// One input of a decoder's target: byte 0 chooses a spec and whether the payload is cut or
// stretched to the right size, then the number of elements, then the payload.
int DecodeOneInput(std::span<const char* const> specs, const uint8_t* data, size_t size);

}  // namespace bdn::fuzz

#endif  // BANDONEON_TESTS_FUZZ_DECODER_PROPERTY_H_
