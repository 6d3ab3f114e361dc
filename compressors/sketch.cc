#include "compressors/sketch.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "common/base/spec_text.h"
#include "common/base/status.h"
#include "compressors/sparse_bitmap.h"

namespace bdn {
namespace {

// A decoder of a payload's elements, tile by tile. Owned by one call, on whose stack it is.
class Medians {
 public:
  Medians(const SketchShape& shape, ByteSpan in) : shape_(shape), in_(in) {}

  TileValues operator()(size_t at, size_t count) {
    const size_t size = CollectOnes(in_.data() + 8 + at / 8, DivideUp(count, 32),
                                    static_cast<uint32_t>(at), index_);
    MedianOfCells(PlacesOf(shape_, in_), in_.data() + shape_.CellsOffset(), index_, size, value_);
    return {size, index_, value_};
  }

 private:
  const SketchShape shape_;
  const ByteSpan in_;
  uint32_t index_[kTile + kOnesSlack];
  float value_[kTile];
};

class SketchCodec final : public Codec {
 public:
  explicit SketchCodec(const SketchOptions& options) : options_(options) {}

  CodecId id() const override { return CodecId::kSketch; }
  std::string spec() const override {
    std::vector<std::string> options;
    if (options_.rows != SketchOptions().rows) {
      options.push_back(absl::StrFormat("rows=%d", options_.rows));
    }
    options.push_back("columns=" + RealText(options_.columns));
    return SpecText("sketch", options);
  }
  bool shares_draw() const override { return true; }
  bool linear() const override { return true; }

  size_t MaxEncodedBytes(size_t n, DType /*dtype*/) const override { return Shape(n).Bytes(); }

  absl::StatusOr<size_t> EncodeFrom(EncodeSource& source, const Draw& draw,
                                    MutableByteSpan out) const override {
    BDN_RETURN_IF_ERROR(EncodeSketch(Shape(source.n()), source, draw, out));
    if (source.keeps_residual()) {
      TakeBits(source, Medians(Shape(source.n()), out));
    }
    return Shape(source.n()).Bytes();
  }

  absl::Status Validate(ByteSpan in, size_t n, DType dtype) const override {
    BDN_RETURN_IF_ERROR(CheckSupports(*this, dtype));
    return ValidateSketch(*this, Shape(n), in);
  }

  void Decode(ByteSpan in, float scale, MutableView y) const override {
    DecodeBits(scale, y, Medians(Shape(y.n), in));
  }
  void DecodeAdd(ByteSpan in, float scale, MutableView y) const override {
    DecodeAddBits(scale, y, Medians(Shape(y.n), in));
  }

  absl::StatusOr<size_t> AddEncoded(std::span<const ByteSpan> in, float scale, size_t n,
                                    DType /*dtype*/, MutableByteSpan out) const override {
    return AddSketches(*this, Shape(n), in, scale, out);
  }

 private:
  SketchShape Shape(size_t n) const {
    if (n == 0) return {.rows = options_.rows};
    const double columns = options_.columns;
    const double width = columns > 1 ? columns : std::ceil(columns * static_cast<double>(n));
    return {.n = n,
            .rows = options_.rows,
            .width = std::clamp<size_t>(static_cast<size_t>(width), 1, n)};
  }

  const SketchOptions options_;
};

}  // namespace

std::shared_ptr<const Codec> MakeSketch(const SketchOptions& options) {
  return std::make_shared<SketchCodec>(options);
}

}  // namespace bdn
