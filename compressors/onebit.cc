#include "compressors/onebit.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <string>

#include "common/base/endian.h"
#include "common/base/status.h"
#include "compressors/payload.h"
#include "kernels/float_kernels.h"
#include "kernels/norm_kernels.h"
#include "kernels/onebit_kernels.h"

namespace bdn {
namespace {

constexpr size_t kWordElements = 32;
constexpr size_t kWordBytes = 4;
constexpr size_t kScaleBytes = 4;

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
float MeanMagnitude(EncodeSource& source, size_t begin, size_t end) {
  double sum = SumMagnitudes(source, begin, end);
  if (!std::isfinite(sum)) sum = SumLargeMagnitudes(source, begin, end);
  if (!std::isfinite(sum)) return static_cast<float>(sum);
  const double mean = sum / static_cast<double>(end - begin);
  return static_cast<float>(std::min<double>(mean, std::numeric_limits<float>::max()));
}

class OneBitCodec final : public Codec {
 public:
  explicit OneBitCodec(size_t block) : block_(block) {}

  CodecId id() const override { return CodecId::kOneBit; }
  std::string spec() const override {
    return block_ == 0 ? "onebit" : absl::StrFormat("onebit(block=%d)", block_);
  }
  bool bounds_itself() const override { return true; }

  size_t MaxEncodedBytes(size_t n, DType /*dtype*/) const override {
    return WordsOffset(n) + DivideUp(n, kWordElements) * kWordBytes;
  }

  absl::StatusOr<size_t> EncodeFrom(EncodeSource& source, const Draw& /*draw*/,
                                    MutableByteSpan out) const override {
    const size_t n = source.n();
    // With a residual all of p is seen before any of it is taken; without, each stretch of whole
    // blocks is packed while it is in a cache.
    const bool whole = source.keeps_residual() || block_ == 0;
    const size_t stretch = whole ? n : std::max<size_t>(1, kTile / block_) * block_;
    for (size_t begin = 0; begin < n; begin += stretch) {
      const size_t end = std::min(n, begin + stretch);
      if (!WriteScales(source, begin, end, out)) return source.CheckFinite();
      PackBackward(source, begin, end, out);
    }
    return MaxEncodedBytes(n, source.dtype());
  }

  absl::Status Validate(ByteSpan in, size_t n, DType dtype) const override {
    BDN_RETURN_IF_ERROR(CheckSupports(*this, dtype));
    BDN_RETURN_IF_ERROR(CheckPayloadSize(*this, in.size(), MaxEncodedBytes(n, dtype), n));
    for (size_t b = 0; b < NumBlocks(n); ++b) {
      const float magnitude = LoadLittle<float>(in, b * kScaleBytes);
      if (!std::isfinite(magnitude) || std::signbit(magnitude)) {
        return InvalidArgument("%s scale %d is %g", spec(), b, magnitude);
      }
    }
    if (n % kWordElements == 0) return absl::OkStatus();
    const auto last = LoadLittle<uint32_t>(in, in.size() - kWordBytes);
    if (last >> (n % kWordElements) != 0) {
      return InvalidArgument("%s payload has sign bits past its %d elements", spec(), n);
    }
    return absl::OkStatus();
  }

  void Decode(ByteSpan in, float scale, MutableView y) const override {
    const std::byte* const words = in.data() + WordsOffset(y.n);
    ForEachBlock(y.n, [&](size_t b, size_t begin, size_t end) {
      const float value = scale * LoadLittle<float>(in, b * kScaleBytes);
      if (y.dtype == DType::kFloat32) {
        UnpackSigns(words + begin / kWordElements * kWordBytes, end - begin, value,
                    y.f32() + begin);
        return;
      }
      float tile[kTile];
      ForEachTile(begin, end, [&](size_t at, size_t count) {
        UnpackSigns(words + at / kWordElements * kWordBytes, count, value, tile);
        ConvertScaled(ConstView{tile, DType::kFloat32, count}, 1.0f, y.Sub(at, count));
      });
    });
  }

  void DecodeAdd(ByteSpan in, float scale, MutableView y) const override {
    const std::byte* const words = in.data() + WordsOffset(y.n);
    ForEachBlock(y.n, [&](size_t b, size_t begin, size_t end) {
      const float value = scale * LoadLittle<float>(in, b * kScaleBytes);
      UnpackSignsAndAdd(words + begin / kWordElements * kWordBytes, end - begin, value,
                        y.f32() + begin);
    });
  }

  void DecodeSum(std::span<const ByteSpan> in, float scale, MutableView y) const override {
    const size_t length = BlockLength(y.n);
    SumByTiles(in, y, [&](ByteSpan payload, size_t at, MutableView tile) {
      const std::byte* const words =
          payload.data() + WordsOffset(y.n) + at / kWordElements * kWordBytes;
      for (size_t done = 0; done < tile.n;) {
        const size_t block = (at + done) / length;
        const size_t part = std::min(tile.n - done, (block + 1) * length - (at + done));
        UnpackSignsAndAdd(words + done / kWordElements * kWordBytes, part,
                          scale * LoadLittle<float>(payload, block * kScaleBytes),
                          tile.f32() + done);
        done += part;
      }
    });
  }

 private:
  // The scales of the blocks that begin in [begin, end); false when p is not finite there.
  bool WriteScales(EncodeSource& source, size_t begin, size_t end, MutableByteSpan out) const {
    const size_t length = BlockLength(source.n());
    for (size_t at = begin; at < end; at += length) {
      const float magnitude = MeanMagnitude(source, at, std::min(end, at + length));
      if (!std::isfinite(magnitude)) return false;
      StoreLittle(out, at / length * kScaleBytes, magnitude);
    }
    return true;
  }

  void PackBackward(EncodeSource& source, size_t begin, size_t end, MutableByteSpan out) const {
    std::byte* const words = out.data() + WordsOffset(source.n());
    const size_t length = BlockLength(source.n());
    ForEachTileBackward(begin, end, [&](size_t at, size_t count) {
      std::byte* const to = words + at / kWordElements * kWordBytes;
      if (!source.keeps_residual()) {
        PackSigns(source.Peek(at, count), count, to);
        return;
      }
      float* const p = source.Take(at, count);
      for (size_t done = 0; done < count;) {
        const size_t block = (at + done) / length;
        const size_t part = std::min(count - done, (block + 1) * length - (at + done));
        PackSignsAndSubtract(p + done, part, LoadLittle<float>(out, block * kScaleBytes),
                             to + done / kWordElements * kWordBytes);
        done += part;
      }
    });
  }

  size_t NumBlocks(size_t n) const {
    if (block_ == 0) return n == 0 ? 0 : 1;
    return DivideUp(n, block_);
  }
  size_t BlockLength(size_t n) const { return block_ == 0 ? n : block_; }
  size_t WordsOffset(size_t n) const { return NumBlocks(n) * kScaleBytes; }

  // visit(block number, first element, past the last), in order.
  template <typename Visit>
  void ForEachBlock(size_t n, const Visit& visit) const {
    const size_t length = BlockLength(n);
    for (size_t b = 0; b < NumBlocks(n); ++b) {
      visit(b, b * length, std::min(n, (b + 1) * length));
    }
  }

  const size_t block_;
};

}  // namespace

std::shared_ptr<const Codec> MakeOneBit(size_t block) {
  return std::make_shared<OneBitCodec>(block);
}

}  // namespace bdn
