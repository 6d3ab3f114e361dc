#include "compressors/dither.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "common/base/endian.h"
#include "common/base/spec_text.h"
#include "common/base/status.h"
#include "compressors/payload.h"
#include "kernels/dither_kernels.h"
#include "kernels/float_kernels.h"
#include "kernels/norm_kernels.h"

namespace bdn {
namespace {

constexpr size_t kNormBytes = 4;
// With a norm in this range the values that a decoder multiplies are finite and normal.
constexpr float kLargestNorm = 0x1.fffffp127f;
constexpr float kLeastNorm = 0x1p-96f;

// Returns NaN or infinity where an element is.
float MaxNorm(EncodeSource& source) {
  float largest = 0;
  ForEachTile(0, source.n(), [&](size_t at, size_t count) {
    const float tile = LargestMagnitude(source.Peek(at, count), count);
    // The comparison is also true for NaN, which then stays.
    if (!(tile <= largest)) largest = std::isnan(largest) ? largest : tile;
  });
  return largest;
}

double SumSquares(EncodeSource& source) {
  double total = 0;
  ForEachTile(0, source.n(), [&](size_t at, size_t count) {
    total = AddSquares(total, source.Peek(at, count), count);
  });
  return total;
}

// Sums the squares of p * scale, where those of p itself overflow or underflow.
double SumScaledSquares(EncodeSource& source, float scale) {
  double total = 0;
  float tile[kTile];
  ForEachTile(0, source.n(), [&](size_t at, size_t count) {
    ConvertScaled(ConstView{source.Peek(at, count), DType::kFloat32, count}, scale,
                  MutableView{tile, DType::kFloat32, count});
    total = AddSquares(total, tile, count);
  });
  return total;
}

// Returns NaN or infinity where an element is.
double L2Norm(EncodeSource& source) {
  const double sum = SumSquares(source);
  if (!std::isfinite(sum)) return 0x1p80 * std::sqrt(SumScaledSquares(source, 0x1p-80f));
  if (sum < 0x1p-80) return 0x1p-80 * std::sqrt(SumScaledSquares(source, 0x1p80f));
  return std::sqrt(sum);
}

class DitherCodec final : public Codec {
 public:
  explicit DitherCodec(const DitherOptions& options)
      : options_(options), bits_(Grid(0.0f).bits()) {}

  CodecId id() const override { return CodecId::kDither; }
  std::string spec() const override {
    const DitherOptions defaults;
    std::vector<std::string> given;
    if (options_.levels != defaults.levels) {
      given.push_back(absl::StrFormat("levels=%d", options_.levels));
    }
    if (options_.natural) given.emplace_back("kind=natural");
    if (options_.l2) given.emplace_back("norm=l2");
    return SpecText("dither", given);
  }

  size_t MaxEncodedBytes(size_t n, DType /*dtype*/) const override {
    return n == 0 ? 0 : kNormBytes + DitherCodeBytes(n, bits_);
  }

  absl::StatusOr<size_t> EncodeFrom(EncodeSource& source, const Draw& draw,
                                    MutableByteSpan out) const override {
    const size_t n = source.n();
    const size_t used = MaxEncodedBytes(n, source.dtype());
    if (n == 0) return used;
    const double exact = options_.l2 ? L2Norm(source) : MaxNorm(source);
    if (!std::isfinite(exact)) return source.CheckFinite();
    auto norm = static_cast<float>(std::min<double>(exact, kLargestNorm));
    if (norm < kLeastNorm) norm = 0;
    StoreLittle(out, 0, norm);
    if (norm == 0) std::memset(out.data(), 0, used);
    const DitherGrid grid = Grid(norm);
    // The norm was read to the end of the array: going backward begins with tiles that are still in
    // the cache. With a norm of 0 there are no codes to write, but every element must be taken all
    // the same.
    ForEachTileBackward(0, n, [&](size_t at, size_t count) {
      std::byte* const codes = out.data() + CodesOffset(at);
      if (source.keeps_residual()) {
        float* const p = source.Take(at, count);
        if (norm > 0) DitherPackAndSubtract(p, count, grid, draw, at, codes);
      } else if (norm > 0) {
        DitherPack(source.Peek(at, count), count, grid, draw, at, codes);
      }
    });
    return used;
  }

  absl::Status Validate(ByteSpan in, size_t n, DType dtype) const override {
    BDN_RETURN_IF_ERROR(CheckSupports(*this, dtype));
    BDN_RETURN_IF_ERROR(CheckPayloadSize(*this, in.size(), MaxEncodedBytes(n, dtype), n));
    if (n == 0) return absl::OkStatus();
    const float norm = LoadLittle<float>(in);
    const auto is_zero = [](std::byte byte) { return byte == std::byte{0}; };
    // -0 also compares equal to 0; then its sign bit fails this test.
    if (norm == 0 && std::all_of(in.begin(), in.end(), is_zero)) return absl::OkStatus();
    if (!(norm >= kLeastNorm && norm <= kLargestNorm)) {
      return InvalidArgument("%s norm is %g%s", spec(), norm,
                             norm == 0 ? ", but the rest of the payload is not 0" : "");
    }
    if (!DitherCodesAreGood(in.data() + kNormBytes, n, Grid(norm))) {
      return InvalidArgument("%s payload has a code that stands for nothing", spec());
    }
    return absl::OkStatus();
  }

  void Decode(ByteSpan in, float scale, MutableView y) const override {
    if (y.n == 0) return;
    const DitherGrid grid = Grid(LoadLittle<float>(in));
    float tile[kTile];
    ForEachTile(0, y.n, [&](size_t at, size_t count) {
      const bool direct = y.dtype == DType::kFloat32;
      float* const to = direct ? y.f32() + at : tile;
      DitherUnpack(in.data() + CodesOffset(at), count, grid, scale, to);
      if (!direct) ConvertScaled({tile, DType::kFloat32, count}, 1.0f, y.Sub(at, count));
    });
  }

  void DecodeAdd(ByteSpan in, float scale, MutableView y) const override {
    if (y.n == 0) return;
    DitherUnpackAndAdd(in.data() + kNormBytes, y.n, Grid(LoadLittle<float>(in)), scale, y.f32());
  }

  void DecodeSum(std::span<const ByteSpan> in, float scale, MutableView y) const override {
    SumByTiles(in, y, [&](ByteSpan payload, size_t at, MutableView tile) {
      DitherUnpackAndAdd(payload.data() + CodesOffset(at), tile.n, Grid(LoadLittle<float>(payload)),
                         scale, tile.f32());
    });
  }

 private:
  DitherGrid Grid(float norm) const {
    return {.levels = static_cast<uint32_t>(options_.levels),
            .natural = options_.natural,
            .norm = norm};
  }
  // Returns the offset of the codes of element `at`, which begins a group.
  size_t CodesOffset(size_t at) const { return kNormBytes + DitherCodeBytes(at, bits_); }

  const DitherOptions options_;
  const uint32_t bits_;
};

}  // namespace

std::shared_ptr<const Codec> MakeDither(const DitherOptions& options) {
  return std::make_shared<DitherCodec>(options);
}

}  // namespace bdn
