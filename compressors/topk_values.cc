#include "compressors/topk_values.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "common/base/status.h"
#include "compressors/payload.h"
#include "kernels/float_kernels.h"

namespace bdn {
namespace {

constexpr uint16_t kBFloat16Infinity = 0x7f80;

DType PlainType(TopKValues format) {
  return format == TopKValues::kHalf ? DType::kFloat16 : DType::kFloat32;
}

// Returns the bytes of k values that are written one by one, without padding.
size_t PlainBytes(TopKValues format, size_t k) { return k * DTypeSize(PlainType(format)); }

double MeanOf(double sum, size_t count) {
  return count == 0 ? 0.0 : sum / static_cast<double>(count);
}
uint16_t Scale(double sum, size_t count) {
  return FloatToBFloat16(static_cast<float>(MeanOf(sum, count)));
}

// Writes two bits a value. topk.h pins the sums: float64, in the order of the values.
void WriteTwoBits(std::span<const float> values, MutableByteSpan out) {
  const size_t num_blocks = DivideUp(values.size(), kTopKTwoBitBlock);
  const size_t num_words = DivideUp(values.size(), 32);
  const size_t words = num_blocks * 2 * sizeof(uint16_t);
  const auto store = [&](size_t word, uint32_t bits) {
    StoreLittle(out, words + word * sizeof(uint32_t), bits);
  };
  for (size_t b = 0; b < num_blocks; ++b) {
    const size_t first = b * kTopKTwoBitBlock;
    const auto block = values.subspan(first, std::min(kTopKTwoBitBlock, values.size() - first));
    double all = 0;
    for (const float value : block) all += std::fabs(value);
    const double mean = MeanOf(all, block.size());
    double low = 0;
    double high = 0;
    size_t num_high = 0;
    for (size_t i = 0; i < block.size(); i += 32) {
      uint32_t negative = 0;
      uint32_t large = 0;
      for (size_t j = i; j < std::min(block.size(), i + 32); ++j) {
        const double magnitude = std::fabs(block[j]);
        const bool is_large = magnitude > mean;
        (is_large ? high : low) += magnitude;
        num_high += is_large ? 1 : 0;
        negative |= static_cast<uint32_t>(block[j] < 0) << (j - i);
        large |= static_cast<uint32_t>(is_large) << (j - i);
      }
      store((first + i) / 32, negative);
      store(num_words + (first + i) / 32, large);
    }
    StoreLittle(out, 2 * b * sizeof(uint16_t), Scale(low, block.size() - num_high));
    StoreLittle(out, (2 * b + 1) * sizeof(uint16_t), Scale(high, num_high));
  }
}

absl::Status CheckTwoBits(ByteSpan in, size_t k) {
  const size_t num_scales = DivideUp(k, kTopKTwoBitBlock) * 2;
  for (size_t i = 0; i < num_scales; ++i) {
    const auto bits = LoadLittle<uint16_t>(in, i * sizeof(uint16_t));
    // This refuses negative numbers, too: their sign is the highest bit.
    if (bits >= kBFloat16Infinity) {
      return InvalidArgument("topk: magnitude %d of the values is negative or not finite: %#x", i,
                             bits);
    }
  }
  const size_t num_words = DivideUp(k, 32);
  for (size_t last = num_words; k % 32 != 0 && last <= 2 * num_words; last += num_words) {
    const size_t at = num_scales * sizeof(uint16_t) + (last - 1) * sizeof(uint32_t);
    if (LoadLittle<uint32_t>(in, at) >> (k % 32) != 0) {
      return InvalidArgument("topk: a bit past the last of %d values is set", k);
    }
  }
  return absl::OkStatus();
}

}  // namespace

size_t TopKValueBytes(TopKValues format, size_t k) {
  if (format != TopKValues::kTwoBit) return AlignUp4(PlainBytes(format, k));
  return DivideUp(k, kTopKTwoBitBlock) * 2 * sizeof(uint16_t) +
         2 * DivideUp(k, 32) * sizeof(uint32_t);
}

void WriteTopKValues(TopKValues format, std::span<const float> values, MutableByteSpan out) {
  if (format == TopKValues::kTwoBit) return WriteTwoBits(values, out);
  ConvertScaled({values.data(), DType::kFloat32, values.size()}, 1.0f,
                {out.data(), PlainType(format), values.size()});
  const size_t end = PlainBytes(format, values.size());
  std::memset(out.data() + end, 0, AlignUp4(end) - end);
}

absl::Status CheckTopKValues(TopKValues format, ByteSpan in, size_t k) {
  if (format == TopKValues::kTwoBit) return CheckTwoBits(in, k);
  const auto padding = in.subspan(PlainBytes(format, k));
  if (std::any_of(padding.begin(), padding.end(), [](std::byte b) { return b != std::byte{0}; })) {
    return InvalidArgument("topk: padding after the values is not zero");
  }
  return CheckFinite({in.data(), PlainType(format), k}, 1.0f);
}

}  // namespace bdn
