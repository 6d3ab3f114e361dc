#include "compressors/sparse_bitmap.h"

#include "common/base/status.h"

namespace bdn {
namespace {

// Returns a word with a bit for each element that is not zero. It looks at the bits of the floats,
// as the caller's thread may treat subnormals as zeros.
uint32_t NonZeros(const float* p, size_t count) {
  // Most words are empty, and a loop without shifts by j finds that out faster.
  uint32_t any = 0;
  for (size_t j = 0; j < count; ++j) any |= std::bit_cast<uint32_t>(p[j]) << 1;
  if (any == 0) return 0;
  uint32_t word = 0;
  for (size_t j = 0; j < count; ++j) {
    word |= static_cast<uint32_t>((std::bit_cast<uint32_t>(p[j]) << 1) != 0) << j;
  }
  return word;
}

template <size_t kRows>
void Scatter(const SketchShape& shape, const Draw& draw, size_t i, float value, std::byte* cells) {
  for (size_t row = 0; row < kRows; ++row) {
    const SketchPlace place = shape.Place(draw, i, row);
    // Cells lie in the payload, which need not be aligned.
    std::byte* const at = cells + place.cell * sizeof(float);
    float cell;
    std::memcpy(&cell, at, sizeof(cell));
    cell = ClampToFinite(cell + place.Signed(value));
    std::memcpy(at, &cell, sizeof(cell));
  }
}

template <size_t kRows>
absl::Status Encode(const SketchShape& shape, EncodeSource& source, const Draw& draw,
                    MutableByteSpan out) {
  std::byte* const cells = out.data() + shape.CellsOffset();
  bool finite = true;
  ForEachTile(0, shape.n, [&](size_t at, size_t count) {
    if (!finite) return;
    const float* const p = source.Peek(at, count);
    // Clamping would hide an infinite element, so each tile is checked before it is added.
    finite = FirstNonFinite({p, DType::kFloat32, count}, 1.0f) == count;
    if (!finite) return;
    for (size_t done = 0; done < count; done += 32) {
      uint32_t word = NonZeros(p + done, std::min<size_t>(32, count - done));
      StoreLittle(out, 8 + (at + done) / 8, word);
      for (; word != 0; word &= word - 1) {
        const size_t j = done + static_cast<size_t>(std::countr_zero(word));
        Scatter<kRows>(shape, draw, at + j, p[j], cells);
      }
    }
  });
  return finite ? absl::OkStatus() : source.CheckFinite();
}

}  // namespace

absl::Status EncodeSketch(const SketchShape& shape, EncodeSource& source, const Draw& draw,
                          MutableByteSpan out) {
  StoreLittle(out, 0, draw.k0());
  StoreLittle(out, 4, draw.k1());
  std::memset(out.data() + shape.CellsOffset(), 0, shape.NumCells() * sizeof(float));
  // The number of rows is a constant in the loops, so that the compiler unrolls them.
  switch (shape.rows) {
    case 1:
      return Encode<1>(shape, source, draw, out);
    case 3:
      return Encode<3>(shape, source, draw, out);
    case 5:
      return Encode<5>(shape, source, draw, out);
    default:
      return Encode<7>(shape, source, draw, out);
  }
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

size_t CountBits(const SketchShape& shape, ByteSpan in) {
  size_t count = 0;
  for (size_t at = 8; at < shape.CellsOffset(); at += 4) {
    count += static_cast<size_t>(std::popcount(LoadLittle<uint32_t>(in, at)));
  }
  return count;
}

}  // namespace bdn
