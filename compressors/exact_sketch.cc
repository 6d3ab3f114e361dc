#include "compressors/exact_sketch.h"

#include <cmath>
#include <string>

#include "common/base/spec_text.h"
#include "common/base/status.h"
#include "compressors/scratch.h"
#include "compressors/sparse_bitmap.h"

namespace bdn {
namespace {

constexpr size_t kRows = 3;

// A decoder that finds the values of a payload's elements again. It names an element by its rank
// among the bits that are set. Owned by one call.
class Peeling {
 public:
  Peeling(const SketchShape& shape, ByteSpan in)
      : shape_(shape),
        draw_(SketchDraw(in)),
        value_(CountBits(shape, in)),
        index_(value_.size()),
        cells_(shape.NumCells()),
        queue_(shape.NumCells()) {
    for (size_t c = 0; c < cells_.size(); ++c) {
      cells_[c] = {LoadLittle<float>(in, shape.CellsOffset() + c * sizeof(float)), 0, 0};
    }
    uint32_t rank = 0;
    ForEachBit(in, 0, shape.n, [&](size_t i) {
      index_[rank] = static_cast<uint32_t>(i);
      for (size_t row = 0; row < kRows; ++row) {
        Cell& cell = cells_[shape_.Place(draw_, i, row).cell];
        ++cell.count;
        cell.ranks ^= rank;
      }
      ++rank;
    });
    guessed_ = value_.size() - Peel();
    if (guessed_ > 0) GuessTheRest();
  }

  // Returns the values of the elements whose bits are set, in order.
  const float* values() const { return value_.data(); }
  // Returns how many of them were not found, but guessed.
  size_t guessed() const { return guessed_; }

 private:
  struct Cell {
    float value;
    uint32_t count;  // elements not yet found
    uint32_t ranks;  // their ranks, joined by exclusive or: a single element's can be read
  };

  // Finds the elements that are alone in a cell, one after the other, and returns how many it
  // found.
  size_t Peel() {
    size_t end = 0;
    for (size_t c = 0; c < cells_.size(); ++c) {
      if (cells_[c].count == 1) queue_[end++] = static_cast<uint32_t>(c);
    }
    size_t found = 0;
    // A cell's count only falls, so it comes to 1 once at most, and the queue needs no more than
    // one entry for each cell.
    for (size_t head = 0; head < end; ++head) {
      const size_t from = queue_[head];
      // The element may have been found from another cell since this one was queued.
      if (cells_[from].count != 1) continue;
      const uint32_t rank = cells_[from].ranks;
      SketchPlace places[kRows];
      for (size_t row = 0; row < kRows; ++row) {
        places[row] = shape_.Place(draw_, index_[rank], row);
        if (places[row].cell == from) value_[rank] = places[row].Estimate(cells_[from].value);
      }
      for (const SketchPlace& place : places) {
        Cell& cell = cells_[place.cell];
        cell.value = ClampToFinite(cell.value - place.Signed(value_[rank]));
        cell.ranks ^= rank;
        if (--cell.count == 1) queue_[end++] = static_cast<uint32_t>(place.cell);
      }
      ++found;
    }
    return found;
  }

  // Gives each element that was not found the median of its cells.
  void GuessTheRest() {
    for (size_t rank = 0; rank < value_.size(); ++rank) {
      float estimates[kRows];
      bool found = false;
      for (size_t row = 0; row < kRows; ++row) {
        const SketchPlace place = shape_.Place(draw_, index_[rank], row);
        const Cell& cell = cells_[place.cell];
        // A found element has left the cell that it was read from empty. An element that was not
        // found is still counted in all three of its cells.
        found = found || cell.count == 0;
        estimates[row] = place.Estimate(cell.value);
      }
      if (!found) value_[rank] = Median(estimates);
    }
  }

  const SketchShape shape_;
  const Draw draw_;
  const ScratchArray<float> value_;
  const ScratchArray<uint32_t> index_;
  const ScratchArray<Cell> cells_;
  const ScratchArray<uint32_t> queue_;
  size_t guessed_ = 0;
};

// Returns a function value(i) for loops over the bits that are set. They come in order, so that
// each call can return the next value.
auto InOrder(const Peeling& peeling) {
  return [next = peeling.values()](size_t) mutable { return *next++; };
}

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
      const Peeling peeling(shape, out);
      TakeBits(out, source, InOrder(peeling));
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
    const Peeling peeling(Shape(y.n), in);
    DecodeBits(in, scale, y, InOrder(peeling));
    return peeling.guessed();
  }
  void DecodeAdd(ByteSpan in, float scale, MutableView y) const override {
    const Peeling peeling(Shape(y.n), in);
    DecodeAddBits(in, scale, y, InOrder(peeling));
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
