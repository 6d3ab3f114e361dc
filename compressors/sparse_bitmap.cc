#include "compressors/sparse_bitmap.h"

#include "common/base/status.h"

namespace bdn {
absl::Status EncodeSketch(const SketchShape& shape, EncodeSource& source, const Draw& draw,
                          MutableByteSpan out) {
  StoreLittle(out, 0, draw.k0());
  StoreLittle(out, 4, draw.k1());
  std::byte* const cells = out.data() + shape.CellsOffset();
  std::memset(cells, 0, shape.NumCells() * sizeof(float));
  const SketchPlaces places = {.draw = draw, .rows = shape.rows, .width = shape.width};
  uint32_t index[kTile + kOnesSlack];
  float value[kTile + kOnesSlack];
  bool finite = true;
  ForEachTile(0, shape.n, [&](size_t at, size_t count) {
    if (!finite) return;
    const float* const p = source.Peek(at, count);
    // Clamping would hide an infinite element, so each tile is checked before it is added.
    finite = FirstNonFinite({p, DType::kFloat32, count}, 1.0f) == count;
    if (!finite) return;
    const size_t found =
        CollectNonZeros(p, count, static_cast<uint32_t>(at), out.data() + 8 + at / 8, index, value);
    AddToCells(places, index, value, found, cells);
  });
  return finite ? absl::OkStatus() : source.CheckFinite();
}

absl::Status ValidateSketch(const Codec& codec, const SketchShape& shape, ByteSpan in) {
  BDN_RETURN_IF_ERROR(CheckPayloadSize(codec, in.size(), shape.Bytes(), shape.n));
  if (shape.n % 32 != 0 &&
      LoadLittle<uint32_t>(in, shape.CellsOffset() - 4) >> (shape.n % 32) != 0) {
    return InvalidArgument("%s payload has bits past its %d elements", codec.spec(), shape.n);
  }
  const size_t cell =
      FirstNonFinite({in.data() + shape.CellsOffset(), DType::kFloat32, shape.NumCells()}, 1.0f);
  if (cell == shape.NumCells()) return absl::OkStatus();
  return InvalidArgument("%s cell %d is %g", codec.spec(), cell,
                         LoadLittle<float>(in, shape.CellsOffset() + cell * sizeof(float)));
}

absl::StatusOr<size_t> AddSketches(const Codec& codec, const SketchShape& shape,
                                   std::span<const ByteSpan> in, float scale, MutableByteSpan out) {
  for (size_t payload = 1; payload < in.size(); ++payload) {
    if (std::memcmp(in[payload].data(), in[0].data(), 8) != 0) {
      return FailedPrecondition("%s payload %d was not drawn like payload 0", codec.spec(),
                                payload);
    }
  }
  std::memcpy(out.data(), in[0].data(), shape.CellsOffset());
  for (const ByteSpan payload : in.subspan(1)) {
    for (size_t at = 8; at < shape.CellsOffset(); at += 4) {
      StoreLittle(out, at, LoadLittle<uint32_t>(out, at) | LoadLittle<uint32_t>(payload, at));
    }
  }
  const auto cells = [&](ByteSpan payload, size_t at, size_t count) {
    return ConstView{payload.data() + shape.CellsOffset() + at * sizeof(float), DType::kFloat32,
                     count};
  };
  absl::Status status;
  ForEachTile(0, shape.NumCells(), [&](size_t at, size_t count) {
    float sum[kTile] = {};
    const MutableView tile{sum, DType::kFloat32, count};
    for (const ByteSpan payload : in) AddScaled(cells(payload, at, count), 1.0f, tile);
    const size_t bad = FirstNonFinite(tile, scale);
    if (bad != count && status.ok()) {
      status = InvalidArgument("%s cell %d of the sum is not finite", codec.spec(), at + bad);
    }
    ConvertScaled(tile, scale,
                  {out.data() + shape.CellsOffset() + at * sizeof(float), DType::kFloat32, count});
  });
  BDN_RETURN_IF_ERROR(status);
  return shape.Bytes();
}

}  // namespace bdn
