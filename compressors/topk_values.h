#ifndef BANDONEON_COMPRESSORS_TOPK_VALUES_H_
#define BANDONEON_COMPRESSORS_TOPK_VALUES_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "common/base/dtype.h"
#include "common/base/endian.h"
#include "compressors/payload.h"
#include "compressors/topk.h"

// The formats of the values in a topk payload, which topk.h defines. Internal to compressors/.

namespace bdn {

// Returns the bytes of k values, padding included: a multiple of 4.
size_t TopKValueBytes(TopKValues format, size_t k);

// Writes the values. REQUIRES: values are finite; out has TopKValueBytes.
void WriteTopKValues(TopKValues format, std::span<const float> values, MutableByteSpan out);

// Returns InvalidArgument for bytes that WriteTopKValues cannot have written. REQUIRES: in has
// TopKValueBytes.
absl::Status CheckTopKValues(TopKValues format, ByteSpan in, size_t k);

// A reader of the values of a valid payload.
template <TopKValues kFormat>
class TopKValueReader {
 public:
  TopKValueReader(ByteSpan in, size_t k);
  float operator[](size_t i) const;

 private:
  bool Bit(size_t words, size_t i) const {
    return (LoadLittle<uint32_t>(in_, words + i / 32 * sizeof(uint32_t)) >> (i % 32) & 1) != 0;
  }

  ByteSpan in_;
  size_t negative_ = 0;
  size_t large_ = 0;
};

// The number of values that share a low and a high magnitude.
constexpr size_t kTopKTwoBitBlock = 64;

template <TopKValues kFormat>
TopKValueReader<kFormat>::TopKValueReader(ByteSpan in, size_t k) : in_(in) {
  const size_t bitmap = DivideUp(k, 32) * sizeof(uint32_t);
  negative_ = DivideUp(k, kTopKTwoBitBlock) * 2 * sizeof(uint16_t);
  large_ = negative_ + bitmap;
}

template <TopKValues kFormat>
float TopKValueReader<kFormat>::operator[](size_t i) const {
  if constexpr (kFormat == TopKValues::kFloat) return LoadLittle<float>(in_, i * sizeof(float));
  if constexpr (kFormat == TopKValues::kHalf) {
    return HalfToFloat(LoadLittle<uint16_t>(in_, i * sizeof(uint16_t)));
  }
  const size_t pair = i / kTopKTwoBitBlock * 2 + (Bit(large_, i) ? 1 : 0);
  const float level = BFloat16ToFloat(LoadLittle<uint16_t>(in_, pair * sizeof(uint16_t)));
  return Bit(negative_, i) ? -level : level;
}

// Calls visit(reader) with the TopKValueReader of the format.
template <typename Visit>
void WithTopKValues(TopKValues format, ByteSpan in, size_t k, const Visit& visit) {
  switch (format) {
    case TopKValues::kFloat:
      return visit(TopKValueReader<TopKValues::kFloat>(in, k));
    case TopKValues::kHalf:
      return visit(TopKValueReader<TopKValues::kHalf>(in, k));
    case TopKValues::kTwoBit:
      return visit(TopKValueReader<TopKValues::kTwoBit>(in, k));
  }
}

}  // namespace bdn

#endif  // BANDONEON_COMPRESSORS_TOPK_VALUES_H_
