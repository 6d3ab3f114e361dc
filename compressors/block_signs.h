#ifndef BANDONEON_COMPRESSORS_BLOCK_SIGNS_H_
#define BANDONEON_COMPRESSORS_BLOCK_SIGNS_H_

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/endian.h"
#include "common/base/status.h"
#include "compressors/payload.h"
#include "kernels/float_kernels.h"

// What onebit and twobit are made of: a scale for each block, which is its mean magnitude times a
// factor, and then bitmaps, a bit an element each. Internal to compressors/.

namespace bdn {

// Where the scales of a payload lie, at its front, and how they are written.
struct BlockScales {
  size_t block;  // elements; 0: all of the array
  bool bfloat;   // bfloat16, padded with zeros to a multiple of 4 bytes; else float32

  size_t BlockLength(size_t n) const { return block == 0 ? n : block; }
  size_t NumBlocks(size_t n) const {
    if (block == 0) return n == 0 ? 0 : 1;
    return DivideUp(n, block);
  }
  size_t ScaleBytes() const { return bfloat ? sizeof(uint16_t) : sizeof(float); }
  // Of all scales, padding included.
  size_t Bytes(size_t n) const { return AlignUp4(NumBlocks(n) * ScaleBytes()); }

  // REQUIRES: b is below the number of blocks.
  float Load(ByteSpan in, size_t b) const {
    if (!bfloat) return LoadLittle<float>(in, b * sizeof(float));
    const uint32_t bits = LoadLittle<uint16_t>(in, b * sizeof(uint16_t));
    return std::bit_cast<float>(bits << 16);
  }
  // Rounds to nearest even, and to a finite one.
  void Store(MutableByteSpan out, size_t b, float scale) const;

  // Writes the scales of the blocks that begin in [begin, end), and the padding after the last:
  // factor * (the mean of |p| over the block), at most `most`. onebit.h has the sum. False when p is
  // not finite there. REQUIRES: begin is the beginning of a block, end too or all of n.
  bool Write(EncodeSource& source, size_t begin, size_t end, float factor, float most,
             MutableByteSpan out) const;
  // InvalidArgument for a scale that is negative, -0, NaN or above `most`, and for padding that is
  // not zero. REQUIRES: in.size() >= Bytes(n).
  absl::Status Check(const Codec& codec, ByteSpan in, size_t n, float most) const;

  // visit(scale, from, count) for what blocks have of [begin, end), in order.
  template <typename Visit>
  void ForEachPart(ByteSpan in, size_t n, size_t begin, size_t end, const Visit& visit) const {
    const size_t length = BlockLength(n);
    size_t b = begin < end ? begin / length : 0;
    for (size_t at = begin; at < end; ++b) {
      const size_t next = std::min(end, (b + 1) * length);
      visit(Load(in, b), at, next - at);
      at = next;
    }
  }
};

// The bitmaps of a payload from an element on, a multiple of 32: each is `bytes` after the one
// before.
template <typename Byte>
struct BitmapsFrom {
  Byte* first;
  size_t bytes;
};

// A codec by what becomes of a run of elements whose scale is known. Bits has
//
//   kId
//   kBitmaps         how many
//   kFactor, kMost   as BlockScales::Write takes them
//   kPacksByScale    whether Pack looks at the scale; then it gets no more than a block
//   Pack(p, count, scale, bitmaps)
//   PackAndSubtract(p, count, scale, bitmaps)    and p <- p - decoded
//   Unpack<kAdd>(bitmaps, count, scale, factor, y)    y = factor * decoded, or y += that
template <class Bits>
class BlockSignsCodec final : public Codec {
 public:
  explicit BlockSignsCodec(BlockScales scales, std::string spec)
      : scales_(scales), spec_(std::move(spec)) {}

  CodecId id() const override { return Bits::kId; }
  std::string spec() const override { return spec_; }
  bool bounds_itself() const override { return true; }

  size_t MaxEncodedBytes(size_t n, DType /*dtype*/) const override {
    return scales_.Bytes(n) + Bits::kBitmaps * BitmapBytes(n);
  }

  absl::StatusOr<size_t> EncodeFrom(EncodeSource& source, const Draw& /*draw*/,
                                    MutableByteSpan out) const override {
    const size_t n = source.n();
    // With a residual all of p is seen before any of it is taken; without, each stretch of whole
    // blocks is packed while it is in a cache.
    const bool whole = source.keeps_residual() || scales_.block == 0;
    const size_t stretch = whole ? n : std::max<size_t>(1, kTile / scales_.block) * scales_.block;
    for (size_t begin = 0; begin < n; begin += stretch) {
      const size_t end = std::min(n, begin + stretch);
      if (!scales_.Write(source, begin, end, Bits::kFactor, Bits::kMost, out)) {
        return source.CheckFinite();
      }
      PackBackward(source, begin, end, out);
    }
    return MaxEncodedBytes(n, source.dtype());
  }

  absl::Status Validate(ByteSpan in, size_t n, DType dtype) const override {
    BDN_RETURN_IF_ERROR(CheckSupports(*this, dtype));
    BDN_RETURN_IF_ERROR(CheckPayloadSize(*this, in.size(), MaxEncodedBytes(n, dtype), n));
    BDN_RETURN_IF_ERROR(scales_.Check(*this, in, n, Bits::kMost));
    if (n % kWordElements == 0) return absl::OkStatus();
    for (size_t i = 1; i <= Bits::kBitmaps; ++i) {
      const size_t past = scales_.Bytes(n) + i * BitmapBytes(n);
      if (LoadLittle<uint32_t>(in, past - kWordBytes) >> (n % kWordElements) != 0) {
        return InvalidArgument("%s payload has bits past its %d elements", spec(), n);
      }
    }
    return absl::OkStatus();
  }

  void Decode(ByteSpan in, float scale, MutableView y) const override {
    if (y.dtype == DType::kFloat32) return Unpack<false>(in, y.n, 0, y.n, scale, y.f32());
    float tile[kTile];
    ForEachTile(0, y.n, [&](size_t at, size_t count) {
      Unpack<false>(in, y.n, at, count, scale, tile);
      ConvertScaled(ConstView{tile, DType::kFloat32, count}, 1.0f, y.Sub(at, count));
    });
  }

  void DecodeAdd(ByteSpan in, float scale, MutableView y) const override {
    Unpack<true>(in, y.n, 0, y.n, scale, y.f32());
  }

  void DecodeSum(std::span<const ByteSpan> in, float scale, MutableView y) const override {
    SumByTiles(in, y, [&](ByteSpan payload, size_t at, MutableView tile) {
      Unpack<true>(payload, y.n, at, tile.n, scale, tile.f32());
    });
  }

 private:
  static constexpr size_t kWordElements = 32;
  static constexpr size_t kWordBytes = 4;

  static size_t BitmapBytes(size_t n) { return DivideUp(n, kWordElements) * kWordBytes; }

  // REQUIRES: `at` is a multiple of 32, as blocks and tiles are.
  template <typename Byte>
  BitmapsFrom<Byte> From(Byte* payload, size_t n, size_t at) const {
    return {payload + scales_.Bytes(n) + at / kWordElements * kWordBytes, BitmapBytes(n)};
  }

  void PackBackward(EncodeSource& source, size_t begin, size_t end, MutableByteSpan out) const {
    const size_t n = source.n();
    ForEachTileBackward(begin, end, [&](size_t at, size_t count) {
      if (source.keeps_residual()) {
        float* const p = source.Take(at, count);
        scales_.ForEachPart(out, n, at, at + count, [&](float scale, size_t from, size_t part) {
          Bits::PackAndSubtract(p + (from - at), part, scale, From(out.data(), n, from));
        });
        return;
      }
      const float* const p = source.Peek(at, count);
      if constexpr (Bits::kPacksByScale) {
        scales_.ForEachPart(out, n, at, at + count, [&](float scale, size_t from, size_t part) {
          Bits::Pack(p + (from - at), part, scale, From(out.data(), n, from));
        });
      } else {
        Bits::Pack(p, count, 0.0f, From(out.data(), n, at));
      }
    });
  }

  // Elements [at, at + count) of n.
  template <bool kAdd>
  void Unpack(ByteSpan in, size_t n, size_t at, size_t count, float factor, float* y) const {
    scales_.ForEachPart(in, n, at, at + count, [&](float scale, size_t from, size_t part) {
      Bits::template Unpack<kAdd>(From(in.data(), n, from), part, scale, factor, y + (from - at));
    });
  }

  const BlockScales scales_;
  const std::string spec_;
};

}  // namespace bdn

#endif  // BANDONEON_COMPRESSORS_BLOCK_SIGNS_H_
