#ifndef BANDONEON_COMPRESSORS_BLOCK_SIGNS_H_
#define BANDONEON_COMPRESSORS_BLOCK_SIGNS_H_

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/endian.h"
#include "common/base/status.h"
#include "compressors/payload.h"
#include "kernels/block_magnitudes.h"
#include "kernels/feedback_blocks.h"
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

  // Whether whole blocks of n elements fit in a tile; then as many as fit are taken at once.
  bool FitTile(size_t n) const { return BlockLength(n) <= kTile; }

  // Writes the scales of the blocks that begin in [begin, end): factor * (the mean of |p| over the
  // block), at most `most`, with bfloat16 to nearest even and a finite one; Write the padding after
  // the last, too. onebit.h has the sum. False when p is not finite there. REQUIRES: begin is the
  // beginning of a block, end too or all of n; to WriteTile, they fit in a tile, and p is that of
  // [begin, end).
  bool Write(EncodeSource& source, size_t begin, size_t end, float factor, float most,
             MutableByteSpan out) const;
  bool WriteTile(const float* p, size_t n, size_t begin, size_t end, float factor, float most,
                 MutableByteSpan out) const;
  void ClearPadding(size_t n, MutableByteSpan out) const;
  // InvalidArgument for a scale that is negative, -0, NaN or above `most`, and for padding that is
  // not zero. REQUIRES: in.size() >= Bytes(n).
  absl::Status Check(const Codec& codec, ByteSpan in, size_t n, float most) const;

  // visit(scales, from, count) for what there is of [begin, end), in order: whole blocks, as many as
  // a tile has, or a part of one. The first of the scales is that of `from`.
  template <typename Visit>
  void ForEachRun(ByteSpan in, size_t n, size_t begin, size_t end, const Visit& visit) const {
    const size_t length = BlockLength(n);
    float scales[kMostTogether];
    for (size_t at = begin; at < end;) {
      const size_t first = at / length;
      size_t next = std::min(end, (first + 1) * length);
      if (FitTile(n) && first * length == at) next = std::min(end, at + kTile / length * length);
      Load(in, first, DivideUp(next - first * length, length), scales);
      visit(BlockMagnitudes{.values = scales, .block = length}, at, next - at);
      at = next;
    }
  }

 private:
  static constexpr size_t kLeastBlock = 32;
  static constexpr size_t kMostTogether = kTile / kLeastBlock;

  // Of blocks [b, b + count).
  void Load(ByteSpan in, size_t b, size_t count, float* scales) const;
  void Store(const float* scales, size_t b, size_t count, MutableByteSpan out) const;
};

// The bitmaps of a payload from an element on, a multiple of 32: each is `bytes` after the one
// before.
template <typename Byte>
struct BitmapsFrom {
  Byte* first;
  size_t bytes;
};

// A codec by what becomes of a run of elements whose scales are known. Bits has
//
//   kId
//   kBitmaps         how many
//   kFactor, kMost   as BlockScales::Write takes them
//   Pack(p, count, scales, bitmaps)
//   PackAndSubtract(p, count, scales, bitmaps)    and p <- p - decoded
//   PackFeedback(step, bitmaps)                   as kernels/feedback_blocks.h has it
//   Unpack<kAdd>(bitmaps, count, scales, factor, y)    y = factor * decoded, or y += that
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
    const bool small = scales_.FitTile(source.n());
    if (small && source.keeps_residual()) BDN_RETURN_IF_ERROR(source.CheckFinite());
    const bool finite = small ? EncodeSmallBlocks(source, out) : EncodeLargeBlocks(source, out);
    if (!finite) return source.CheckFinite();
    return MaxEncodedBytes(source.n(), source.dtype());
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

  // As many blocks as a tile has at once, each seen once. With a residual backward, as what was looked
  // at last is still in a cache. False where p is not finite.
  bool EncodeSmallBlocks(EncodeSource& source, MutableByteSpan out) const {
    const size_t n = source.n();
    if (n == 0) return true;
    scales_.ClearPadding(n, out);
    const size_t stretch = kTile / scales_.BlockLength(n) * scales_.BlockLength(n);
    const size_t count = DivideUp(n, stretch);
    for (size_t s = 0; s < count; ++s) {
      size_t begin = (source.keeps_residual() ? count - 1 - s : s) * stretch;
      const size_t end = std::min(n, begin + stretch);
      if (source.keeps_residual()) begin += TakeBlocks(source, begin, end, out);
      if (begin == end) continue;
      float* const taken = source.keeps_residual() ? source.Take(begin, end - begin) : nullptr;
      const float* const p = taken == nullptr ? source.Peek(begin, end - begin) : taken;
      if (!scales_.WriteTile(p, n, begin, end, Bits::kFactor, Bits::kMost, out)) return false;
      PackRuns(p, taken, n, begin, end, out);
    }
    return true;
  }

  // As many blocks from `begin` on as a kernel takes in one pass; returns their elements. The others are
  // taken, added up and packed one after the other.
  size_t TakeBlocks(EncodeSource& source, size_t begin, size_t end, MutableByteSpan out) const {
    const size_t n = source.n();
    const Feedback step = source.Untaken(begin, end - begin);
    if (step.momentum != nullptr || step.g.dtype != DType::kFloat32) return 0;
    const size_t block = scales_.BlockLength(n);
    return Bits::PackFeedback({.g = step.g.f32(),
                               .n = step.g.n,
                               .options = step.options,
                               .residual = step.residual,
                               .block = block,
                               .factor = Bits::kFactor,
                               .most = Bits::kMost,
                               .bfloat = scales_.bfloat,
                               .scales = out.data() + begin / block * scales_.ScaleBytes()},
                              From(out.data(), n, begin));
  }

  // Blocks of several tiles: their scales, then their signs, backward. With a residual all scales
  // come first, since nothing may be taken before.
  bool EncodeLargeBlocks(EncodeSource& source, MutableByteSpan out) const {
    const size_t n = source.n();
    const size_t stretch = source.keeps_residual() ? n : scales_.BlockLength(n);
    for (size_t begin = 0; begin < n; begin += stretch) {
      const size_t end = std::min(n, begin + stretch);
      if (!scales_.Write(source, begin, end, Bits::kFactor, Bits::kMost, out)) return false;
      ForEachTileBackward(begin, end, [&](size_t at, size_t count) {
        float* const taken = source.keeps_residual() ? source.Take(at, count) : nullptr;
        const float* const p = taken == nullptr ? source.Peek(at, count) : taken;
        PackRuns(p, taken, n, at, at + count, out);
      });
    }
    return true;
  }

  // p is that of [begin, end). Where it was taken, `taken` points to it and is left p - decoded.
  void PackRuns(const float* p, float* taken, size_t n, size_t begin, size_t end,
                MutableByteSpan out) const {
    scales_.ForEachRun(out, n, begin, end, [&](BlockMagnitudes scales, size_t from, size_t count) {
      const BitmapsFrom<std::byte> to = From(out.data(), n, from);
      if (taken != nullptr) {
        Bits::PackAndSubtract(taken + (from - begin), count, scales, to);
      } else {
        Bits::Pack(p + (from - begin), count, scales, to);
      }
    });
  }

  // Elements [at, at + count) of n.
  template <bool kAdd>
  void Unpack(ByteSpan in, size_t n, size_t at, size_t count, float factor, float* y) const {
    const auto unpack = [&](BlockMagnitudes scales, size_t from, size_t part) {
      Bits::template Unpack<kAdd>(From(in.data(), n, from), part, scales, factor, y + (from - at));
    };
    scales_.ForEachRun(in, n, at, at + count, unpack);
  }

  const BlockScales scales_;
  const std::string spec_;
};

}  // namespace bdn

#endif  // BANDONEON_COMPRESSORS_BLOCK_SIGNS_H_
