#include "compressors/onebit.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <string>

#include "common/base/endian.h"
#include "common/base/status.h"
#include "compressors/kernels/float_kernels.h"
#include "compressors/kernels/onebit_kernels.h"
#include "compressors/payload.h"

namespace bdn {
namespace {

constexpr size_t kWordElements = 32;
constexpr size_t kWordBytes = 4;
constexpr size_t kScaleBytes = 4;

// `read(offset, count)` gives a tile of p.
template <typename Read>
double SumMagnitudes(size_t begin, size_t end, const Read& read) {
  double total = 0;
  ForEachTile(begin, end, [&](size_t at, size_t count) {
    total = AddMagnitudes(total, read(at, count), count);
  });
  return total;
}

template <typename Read>
float MeanMagnitude(size_t begin, size_t end, const Read& read) {
  double sum = SumMagnitudes(begin, end, read);
  if (!std::isfinite(sum)) {
    float tile[TileReader::kTile];
    sum = 0x1p8 * SumMagnitudes(begin, end, [&](size_t at, size_t count) {
            ConvertScaled(ConstView{read(at, count), DType::kFloat32, count}, 0x1p-8f,
                          MutableView{tile, DType::kFloat32, count});
            return static_cast<const float*>(tile);
          });
  }
  const double mean = sum / static_cast<double>(end - begin);
  return static_cast<float>(std::min<double>(mean, std::numeric_limits<float>::max()));
}

class OneBitCodec final : public Compressor {
 public:
  explicit OneBitCodec(size_t block) : block_(block) {}

  CodecId id() const override { return CodecId::kOneBit; }
  std::string spec() const override {
    return block_ == 0 ? "onebit" : absl::StrFormat("onebit(block=%d)", block_);
  }

  size_t MaxEncodedBytes(size_t n, DType /*dtype*/) const override {
    return WordsOffset(n) + DivideUp(n, kWordElements) * kWordBytes;
  }

  absl::StatusOr<size_t> Encode(ConstView x, float scale, const Draw& /*draw*/,
                                MutableByteSpan out) const override {
    BDN_RETURN_IF_ERROR(CheckFinite(x, scale));
    TileReader tiles(x, scale);
    const auto read = [&](size_t at, size_t count) { return tiles.Read(at, count); };
    std::byte* const words = out.data() + WordsOffset(x.n);
    ForEachBlock(x.n, [&](size_t b, size_t begin, size_t end) {
      StoreLittle(out, b * kScaleBytes, MeanMagnitude(begin, end, read));
      ForEachTile(begin, end, [&](size_t at, size_t count) {
        PackSigns(read(at, count), count, words + at / kWordElements * kWordBytes);
      });
    });
    return MaxEncodedBytes(x.n, x.dtype);
  }

  size_t EncodeResidual(float* residual, size_t n, const Draw& /*draw*/,
                        MutableByteSpan out) const override {
    std::byte* const words = out.data() + WordsOffset(n);
    ForEachBlock(n, [&](size_t b, size_t begin, size_t end) {
      const float magnitude =
          MeanMagnitude(begin, end, [&](size_t at, size_t) { return residual + at; });
      StoreLittle(out, b * kScaleBytes, magnitude);
      PackSignsAndSubtract(residual + begin, end - begin, magnitude,
                           words + begin / kWordElements * kWordBytes);
    });
    return MaxEncodedBytes(n, DType::kFloat32);
  }

  absl::Status Validate(ByteSpan in, size_t n, DType dtype) const override {
    BDN_RETURN_IF_ERROR(CheckSupports(*this, dtype));
    BDN_RETURN_IF_ERROR(CheckPayloadSize(*this, in.size(), MaxEncodedBytes(n, dtype), n));
    for (size_t b = 0; b < NumBlocks(n); ++b) {
      const float magnitude = LoadLittle<float>(in, b * kScaleBytes);
      if (!std::isfinite(magnitude) || std::signbit(magnitude)) {
        return InvalidArgument("%s scale %d is %g", spec(), b, magnitude);
      }
    }
    if (n % kWordElements == 0) return absl::OkStatus();
    const auto last = LoadLittle<uint32_t>(in, in.size() - kWordBytes);
    if (last >> (n % kWordElements) != 0) {
      return InvalidArgument("%s payload has sign bits past its %d elements", spec(), n);
    }
    return absl::OkStatus();
  }

  void Decode(ByteSpan in, float scale, MutableView y) const override {
    const std::byte* const words = in.data() + WordsOffset(y.n);
    ForEachBlock(y.n, [&](size_t b, size_t begin, size_t end) {
      const float value = scale * LoadLittle<float>(in, b * kScaleBytes);
      if (y.dtype == DType::kFloat32) {
        UnpackSigns(words + begin / kWordElements * kWordBytes, end - begin, value,
                    y.f32() + begin);
        return;
      }
      float tile[TileReader::kTile];
      ForEachTile(begin, end, [&](size_t at, size_t count) {
        UnpackSigns(words + at / kWordElements * kWordBytes, count, value, tile);
        ConvertScaled(ConstView{tile, DType::kFloat32, count}, 1.0f, y.Sub(at, count));
      });
    });
  }

  void DecodeAdd(ByteSpan in, float scale, MutableView y) const override {
    const std::byte* const words = in.data() + WordsOffset(y.n);
    ForEachBlock(y.n, [&](size_t b, size_t begin, size_t end) {
      const float value = scale * LoadLittle<float>(in, b * kScaleBytes);
      UnpackSignsAndAdd(words + begin / kWordElements * kWordBytes, end - begin, value,
                        y.f32() + begin);
    });
  }

 private:
  size_t NumBlocks(size_t n) const {
    if (block_ == 0) return n == 0 ? 0 : 1;
    return DivideUp(n, block_);
  }
  size_t WordsOffset(size_t n) const { return NumBlocks(n) * kScaleBytes; }

  // visit(block number, first element, past the last), in order.
  template <typename Visit>
  void ForEachBlock(size_t n, const Visit& visit) const {
    const size_t length = block_ == 0 ? n : block_;
    for (size_t b = 0; b < NumBlocks(n); ++b) {
      visit(b, b * length, std::min(n, (b + 1) * length));
    }
  }

  const size_t block_;
};

}  // namespace

std::shared_ptr<const Compressor> MakeOneBit(size_t block) {
  return std::make_shared<OneBitCodec>(block);
}

}  // namespace bdn
