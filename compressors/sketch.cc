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

// The decoder of one element: the median of its estimates in all rows. The number of rows is a
// constant, so that the compiler unrolls the loops.
template <size_t kRows>
struct RowsMedian {
  float operator()(size_t i) const {
    float estimates[kRows];
    for (size_t row = 0; row < kRows; ++row) {
      const SketchPlace place = shape.Place(draw, i, row);
      estimates[row] =
          place.Estimate(LoadLittle<float>(in, shape.CellsOffset() + place.cell * sizeof(float)));
    }
    return Median(estimates);
  }
  const SketchShape shape;
  const ByteSpan in;
  const Draw draw;
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
      WithValues(out, source.n(), [&](const auto& value) { TakeBits(out, source, value); });
    }
    return Shape(source.n()).Bytes();
  }

  absl::Status Validate(ByteSpan in, size_t n, DType dtype) const override {
    BDN_RETURN_IF_ERROR(CheckSupports(*this, dtype));
    return ValidateSketch(*this, Shape(n), in);
  }

  void Decode(ByteSpan in, float scale, MutableView y) const override {
    WithValues(in, y.n, [&](const auto& value) { DecodeBits(in, scale, y, value); });
  }
  void DecodeAdd(ByteSpan in, float scale, MutableView y) const override {
    WithValues(in, y.n, [&](const auto& value) { DecodeAddBits(in, scale, y, value); });
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

  // Calls use(value), where value(i) returns what element i decodes to.
  template <typename Use>
  void WithValues(ByteSpan in, size_t n, const Use& use) const {
    const SketchShape shape = Shape(n);
    const Draw draw = SketchDraw(in);
    switch (options_.rows) {
      case 1:
        return use(RowsMedian<1>{shape, in, draw});
      case 3:
        return use(RowsMedian<3>{shape, in, draw});
      case 5:
        return use(RowsMedian<5>{shape, in, draw});
      default:
        return use(RowsMedian<7>{shape, in, draw});
    }
  }

  const SketchOptions options_;
};

}  // namespace

std::shared_ptr<const Codec> MakeSketch(const SketchOptions& options) {
  return std::make_shared<SketchCodec>(options);
}

}  // namespace bdn
