#ifndef BANDONEON_TESTS_FUZZ_DECODER_PROPERTY_H_
#define BANDONEON_TESTS_FUZZ_DECODER_PROPERTY_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "compressors/codec.h"

// The parts that the fuzz targets of the decoders share.

namespace bdn::fuzz {

// Aborts where it does not hold, which is a finding.
void Check(bool holds);

// A reader that takes an input apart, from front to back; it returns zeros once the input is used
// up. Not thread-safe.
class InputReader {
 public:
  InputReader(const uint8_t* data, size_t size) : left_(data, size) {}
  bool empty() const { return left_.empty(); }
  uint8_t Byte();
  // Returns up to 1023 elements, or 66559: rarely, as inputs of so many take a hundred times as
  // long, and only for codecs that work in blocks.
  size_t NumElements();
  std::vector<uint8_t> Rest() const { return {left_.begin(), left_.end()}; }

 private:
  std::span<const uint8_t> left_;
};

// Returns the codec of a valid spec.
std::shared_ptr<const Codec> CodecOf(const std::string& spec);

// `payload` of n elements is refused, or decodes inside memory of exactly the right size, to finite
// numbers, as DecodeAdd does, into every type, and what was decoded encodes again.
void CheckDecoder(const Codec& codec, const std::vector<uint8_t>& payload, size_t n, DType dtype);

// One input of a decoder's target: byte 0 chooses a spec and whether the payload is cut or
// stretched to the right size, then the number of elements, then the payload.
int DecodeOneInput(std::span<const char* const> specs, const uint8_t* data, size_t size);

}  // namespace bdn::fuzz

#endif  // BANDONEON_TESTS_FUZZ_DECODER_PROPERTY_H_
