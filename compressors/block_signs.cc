#include "compressors/block_signs.h"

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

// The same of p * 2^-8, times 2^8: for sums that overflow.
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

// Not finite when an element is not.
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

}  // namespace

void BlockScales::Store(MutableByteSpan out, size_t b, float scale) const {
  if (bfloat) {
    StoreLittle(out, b * sizeof(uint16_t), FloatToBFloat16(scale));
  } else {
    StoreLittle(out, b * sizeof(float), scale);
  }
}

bool BlockScales::Write(EncodeSource& source, size_t begin, size_t end, float factor, float most,
                        MutableByteSpan out) const {
  const size_t length = BlockLength(source.n());
  // Of short blocks p is computed for as many as a tile has.
  const size_t together = std::max<size_t>(1, kTile / length) * length;
  for (size_t at = begin; at < end; at += together) {
    const size_t next = std::min(end, at + together);
    const float* p = length < kTile ? source.Peek(at, next - at) : nullptr;
    for (size_t from = at; from < next; from += length) {
      const size_t to = std::min(next, from + length);
      float mean = p != nullptr ? MeanOf(AddMagnitudes(0, p + (from - at), to - from), to - from)
                                : MeanMagnitude(source, from, to);
      if (!std::isfinite(mean) && p != nullptr) {
        mean = MeanMagnitude(source, from, to);
        p = source.Peek(at, next - at);
      }
      if (!std::isfinite(mean)) return false;
      Store(out, from / length, std::min(factor * mean, most));
    }
  }
  if (end == source.n()) {
    const size_t used = NumBlocks(end) * ScaleBytes();
    std::memset(out.data() + used, 0, Bytes(end) - used);
  }
  return true;
}

absl::Status BlockScales::Check(const Codec& codec, ByteSpan in, size_t n, float most) const {
  for (size_t b = 0; b < NumBlocks(n); ++b) {
    const float magnitude = Load(in, b);
    if (!(magnitude <= most) || std::signbit(magnitude)) {
      return InvalidArgument("%s scale %d is %g", codec.spec(), b, magnitude);
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
