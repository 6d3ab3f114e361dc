#include "compressors/block_signs.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/norm_kernels.h"

namespace bdn {
namespace {

double SumMagnitudes(EncodeSource& source, size_t begin, size_t end) {
  double total = 0;
  ForEachTile(begin, end, [&](size_t at, size_t count) {
    total = AddMagnitudes(total, source.Peek(at, count), count);
  });
  return total;
}

// Returns the same sum, taken over p * 2^-8 and multiplied by 2^8, for sums that overflow float32
// though every element is finite.
double SumLargeMagnitudes(EncodeSource& source, size_t begin, size_t end) {
  double total = 0;
  float tile[kTile];
  ForEachTile(begin, end, [&](size_t at, size_t count) {
    ConvertScaled(ConstView{source.Peek(at, count), DType::kFloat32, count}, 0x1p-8f,
                  MutableView{tile, DType::kFloat32, count});
    total = AddMagnitudes(total, tile, count);
  });
  return 0x1p8 * total;
}

// Returns the mean, which is NaN or infinite where an element is. Rounding may lift the mean of
// finite elements above the largest float, so it is limited to that.
float MeanOf(double sum, size_t n) {
  if (!std::isfinite(sum)) return static_cast<float>(sum);
  const double mean = sum / static_cast<double>(n);
  return static_cast<float>(std::min<double>(mean, std::numeric_limits<float>::max()));
}

float MeanMagnitude(EncodeSource& source, size_t begin, size_t end) {
  double sum = SumMagnitudes(source, begin, end);
  if (!std::isfinite(sum)) sum = SumLargeMagnitudes(source, begin, end);
  return MeanOf(sum, end - begin);
}

// Returns whether each scale is at most `most`, and neither negative, -0 nor NaN: the bits of such
// floats, read as whole numbers, are above those of `most`. The loop is plain, since compilers turn
// it into vectors.
bool AllBitsAtMost(const float* scales, size_t count, float most) {
  uint32_t largest = 0;
  for (size_t b = 0; b < count; ++b)
    largest = std::max(largest, std::bit_cast<uint32_t>(scales[b]));
  return largest <= std::bit_cast<uint32_t>(most);
}

// Returns the mean magnitude of n elements that are all at hand.
float MeanMagnitude(const float* p, size_t n) {
  EncodeSource source(ConstView{p, DType::kFloat32, n}, 1.0f);
  return MeanMagnitude(source, 0, n);
}

}  // namespace

void BlockScales::Load(ByteSpan in, size_t b, size_t count, float* scales) const {
  const std::byte* const from = in.data() + b * ScaleBytes();
  if (!bfloat) {
    std::memcpy(scales, from, count * sizeof(float));
    return;
  }
  ConvertScaled({from, DType::kBFloat16, count}, 1.0f, {scales, DType::kFloat32, count});
}

void BlockScales::Store(const float* scales, size_t b, size_t count, MutableByteSpan out) const {
  std::byte* const to = out.data() + b * ScaleBytes();
  if (!bfloat) {
    std::memcpy(to, scales, count * sizeof(float));
    return;
  }
  ConvertScaled({scales, DType::kFloat32, count}, 1.0f, {to, DType::kBFloat16, count});
}

void BlockScales::ClearPadding(size_t n, MutableByteSpan out) const {
  const size_t used = NumBlocks(n) * ScaleBytes();
  std::memset(out.data() + used, 0, Bytes(n) - used);
}

bool BlockScales::Write(EncodeSource& source, size_t begin, size_t end, float factor, float most,
                        MutableByteSpan out) const {
  const size_t length = BlockLength(source.n());
  for (size_t at = begin; at < end; at += length) {
    const float mean = MeanMagnitude(source, at, std::min(end, at + length));
    if (!std::isfinite(mean)) return false;
    const float scale = std::min(factor * mean, most);
    Store(&scale, at / length, 1, out);
  }
  if (end == source.n()) ClearPadding(end, out);
  return true;
}

bool BlockScales::WriteTile(const float* p, size_t n, size_t begin, size_t end, float factor,
                            float most, MutableByteSpan out) const {
  const size_t length = BlockLength(n);
  const size_t blocks = DivideUp(end - begin, length);
  float scales[kMostTogether];
  const bool finite = MeanMagnitudes(p, end - begin, length, scales);
  for (size_t b = 0; b < blocks; ++b) {
    // The kernel's sums may overflow although every element is finite: such blocks are summed
    // again, scaled down.
    if (!finite && !std::isfinite(scales[b])) {
      scales[b] = MeanMagnitude(p + b * length, std::min(length, end - begin - b * length));
      if (!std::isfinite(scales[b])) return false;
    }
    scales[b] = std::min(factor * scales[b], most);
  }
  Store(scales, begin / length, blocks, out);
  return true;
}

absl::Status BlockScales::Check(const Codec& codec, ByteSpan in, size_t n, float most) const {
  const size_t num_blocks = NumBlocks(n);
  float scales[kMostTogether];
  // One comparison checks as many scales as a tile has; only where it fails are they searched for
  // the one to name.
  for (size_t first = 0; first < num_blocks; first += kMostTogether) {
    const size_t blocks = std::min(kMostTogether, num_blocks - first);
    Load(in, first, blocks, scales);
    if (AllBitsAtMost(scales, blocks, most)) continue;
    for (size_t b = 0; b < blocks; ++b) {
      if (!AllBitsAtMost(scales + b, 1, most)) {
        return InvalidArgument("%s scale %d is %g", codec.spec(), first + b, scales[b]);
      }
    }
  }
  for (size_t at = NumBlocks(n) * ScaleBytes(); at < Bytes(n); ++at) {
    if (in[at] != std::byte{0}) {
      return InvalidArgument("%s payload has padding that is not zero", codec.spec());
    }
  }
  return absl::OkStatus();
}

}  // namespace bdn
