#include "compressors/exact_sketch.h"

#include <cmath>
#include <string>

#include "common/base/spec_text.h"
#include "common/base/status.h"
#include "compressors/scratch.h"
#include "compressors/sparse_bitmap.h"
#include "kernels/peel_kernels.h"

namespace bdn {
namespace {

constexpr size_t kRows = 3;

// A decoder of a payload's elements, which finds all of them again before it lends any, tile by
// tile. Owned by one call.
class Peeling {
 public:
  Peeling(const SketchShape& shape, ByteSpan in)
      : words_(in.data() + 8),
        size_(CountOnes(words_, shape.NumWords())),
        index_(size_ + kOnesSlack),
        value_(size_) {
    CollectOnes(words_, shape.NumWords(), 0, index_.data());
    const ScratchArray<std::byte> cells(shape.NumCells() * kPeelCellBytes);
    const ScratchArray<uint32_t> queue(shape.NumCells() + kPeelQueueSlack);
    guessed_ = PeelCells(PlacesOf(shape, in), in.data() + shape.CellsOffset(), index_.data(), size_,
                         {.cells = cells.data(), .queue = queue.data()}, value_.data());
  }

  TileValues operator()(size_t at, size_t count) {
    const size_t begin = lent_;
    lent_ += CountOnes(words_ + at / 8, DivideUp(count, 32));
    return {lent_ - begin, index_.data() + begin, value_.data() + begin};
  }

  // Returns how many elements were not found, but guessed.
  size_t guessed() const { return guessed_; }

 private:
  const std::byte* const words_;
  const size_t size_;
  const ScratchArray<uint32_t> index_;
  const ScratchArray<float> value_;
  size_t guessed_ = 0;
  size_t lent_ = 0;  // elements of the tiles so far
};

class ExactSketchCodec final : public Codec {
 public:
  explicit ExactSketchCodec(const ExactSketchOptions& options) : options_(options) {}

  CodecId id() const override { return CodecId::kExactSketch; }
  std::string spec() const override {
    const std::string cells = "cells=" + RealText(options_.cells);
    return SpecText("exactsketch", {&cells, 1});
  }
  bool shares_draw() const override { return true; }
  bool linear() const override { return true; }
  bool guesses() const override { return true; }

  size_t MaxEncodedBytes(size_t n, DType /*dtype*/) const override { return Shape(n).Bytes(); }

  absl::StatusOr<size_t> EncodeFrom(EncodeSource& source, const Draw& draw,
                                    MutableByteSpan out) const override {
    const SketchShape shape = Shape(source.n());
    BDN_RETURN_IF_ERROR(EncodeSketch(shape, source, draw, out));
    if (source.keeps_residual()) {
      TakeBits(source, Peeling(shape, out));
    }
    return shape.Bytes();
  }

  absl::Status Validate(ByteSpan in, size_t n, DType dtype) const override {
    BDN_RETURN_IF_ERROR(CheckSupports(*this, dtype));
    return ValidateSketch(*this, Shape(n), in);
  }

  void Decode(ByteSpan in, float scale, MutableView y) const override {
    DecodeCounting(in, scale, y);
  }
  size_t DecodeCounting(ByteSpan in, float scale, MutableView y) const override {
    Peeling peeling(Shape(y.n), in);
    DecodeBits(scale, y, peeling);
    return peeling.guessed();
  }
  void DecodeAdd(ByteSpan in, float scale, MutableView y) const override {
    DecodeAddBits(scale, y, Peeling(Shape(y.n), in));
  }

  absl::StatusOr<size_t> AddEncoded(std::span<const ByteSpan> in, float scale, size_t n,
                                    DType /*dtype*/, MutableByteSpan out) const override {
    return AddSketches(*this, Shape(n), in, scale, out);
  }

 private:
  SketchShape Shape(size_t n) const {
    if (n == 0) return {.rows = kRows};
    const double cells = std::ceil(options_.cells * static_cast<double>(n));
    const size_t width = DivideUp(static_cast<size_t>(cells), kRows);
    return {.n = n, .rows = kRows, .width = std::max<size_t>(2, width)};
  }

  const ExactSketchOptions options_;
};

}  // namespace

std::shared_ptr<const Codec> MakeExactSketch(const ExactSketchOptions& options) {
  return std::make_shared<ExactSketchCodec>(options);
}

}  // namespace bdn
