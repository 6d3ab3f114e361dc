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

// The common part of onebit and twobit. Both send a scale for each block, which is the block's mean
// magnitude times a factor, and then bitmaps with a bit for each element. Internal to compressors/.

namespace bdn {

// The layout of the scales at the front of a payload, and their number format.
struct BlockScales {
  size_t block;  // elements; 0: all of the array
  bool bfloat;   // bfloat16, padded with zeros to a multiple of 4 bytes; else float32

  size_t BlockLength(size_t n) const { return block == 0 ? n : block; }
  size_t NumBlocks(size_t n) const {
    if (block == 0) return n == 0 ? 0 : 1;
    return DivideUp(n, block);
  }
  size_t ScaleBytes() const { return bfloat ? sizeof(uint16_t) : sizeof(float); }
  // Returns the bytes of all scales, padding included.
  size_t Bytes(size_t n) const { return AlignUp4(NumBlocks(n) * ScaleBytes()); }

  // Returns whether whole blocks of n elements fit in a tile. Then as many blocks as fit are
  // handled at once.
  bool FitTile(size_t n) const { return BlockLength(n) <= kTile; }

  // Write and WriteTile write the scales of the blocks that begin in [begin, end): factor * (the
  // mean of |p| over the block), at most `most`. bfloat16 scales are rounded to nearest even and
  // stay finite. Write also writes the padding after the last scale. onebit.h pins the sum. They
  // return false where p is not finite there. REQUIRES: a block begins at `begin`, and `end` ends a
  // block or all of n. For WriteTile, the blocks fit in a tile, and p holds the elements [begin,
  // end).
  bool Write(EncodeSource& source, size_t begin, size_t end, float factor, float most,
             MutableByteSpan out) const;
  bool WriteTile(const float* p, size_t n, size_t begin, size_t end, float factor, float most,
                 MutableByteSpan out) const;
  void ClearPadding(size_t n, MutableByteSpan out) const;
  // Returns InvalidArgument for a scale that is negative, -0, NaN or above `most`, and for padding
  // that is not zero. REQUIRES: in.size() >= Bytes(n).
  absl::Status Check(const Codec& codec, ByteSpan in, size_t n, float most) const;

  // Calls visit(scales, from, count) for stretches of [begin, end), in order. A stretch is as many
  // whole blocks as a tile holds, or a part of one block. The first of `scales` is that of element
  // `from`.
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

  // Load and Store convert the scales of blocks [b, b + count) between the payload and float32.
  void Load(ByteSpan in, size_t b, size_t count, float* scales) const;
  void Store(const float* scales, size_t b, size_t count, MutableByteSpan out) const;
};

// The bitmaps of a payload, seen from an element whose number is a multiple of 32. Each bitmap lies
// `bytes` bytes after the one before it.
template <typename Byte>
struct BitmapsFrom {
  Byte* first;
  size_t bytes;
};

// A codec of scales and bitmaps. The class Bits says how a run of elements becomes bits once its
// scales are known. It has
//
//   kId
//   kBitmaps         the number of bitmaps
//   kFactor, kMost   the arguments of BlockScales::Write
//   Pack(p, count, scales, bitmaps)
//   PackAndSubtract(p, count, scales, bitmaps)    and p <- p - decoded
//   PackFeedback(step, bitmaps)                   as kernels/feedback_blocks.h describes it
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

  // Returns the bitmaps from element `at` on. REQUIRES: `at` is a multiple of 32, as every block's
  // and every tile's beginning is.
  template <typename Byte>
  BitmapsFrom<Byte> From(Byte* payload, size_t n, size_t at) const {
    return {payload + scales_.Bytes(n) + at / kWordElements * kWordBytes, BitmapBytes(n)};
  }

  // Encodes blocks that fit in a tile, as many at once as it holds, so that each is read once. With
  // a residual it goes backward: the check of the input ended at the end, which is still in a
  // cache. Returns false where p is not finite.
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

  // Lets a kernel take as many blocks from `begin` on as it can in one pass, and returns the number
  // of their elements. The caller takes, sums and packs the other blocks in separate passes.
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

  // Encodes blocks of several tiles: first their scales, then their signs, backward. With a
  // residual all scales come first, since nothing may be taken before all of p was seen to be
  // finite.
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

  // Packs p, the elements [begin, end). Where they were taken, `taken` points to them, and
  // p - decoded is left there.
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

  // Decodes elements [at, at + count) of n.
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
