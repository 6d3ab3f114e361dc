#include "compressors/integer.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "common/base/endian.h"
#include "common/base/spec_text.h"
#include "common/base/status.h"
#include "compressors/payload.h"
#include "kernels/float_kernels.h"
#include "kernels/hadamard_kernels.h"
#include "kernels/integer_kernels.h"

namespace bdn {
namespace {

constexpr size_t kRun = 32;
constexpr size_t kScaleBytes = 4;
constexpr float kLeastMagnitude = 0x1p-100f;
constexpr uint32_t kInfinity = 0x7f800000u;

// Returns the largest s whose product with `most` is at most `limit`. The division may round up or
// down, so its neighbours are tried.
float LargestScale(float most, float limit) {
  float s = limit / most;
  while (!(most * s <= limit)) s = std::nextafter(s, 0.0f);
  while (most * std::nextafter(s, limit) <= limit && s < limit) s = std::nextafter(s, limit);
  return s;
}

// Returns L.
float MostCode(const IntegerOptions& options) {
  return static_cast<float>((1 << (options.bits - 1)) - 1);
}

class IntegerCodec final : public Codec {
 public:
  explicit IntegerCodec(const IntegerOptions& options)
      : options_(options),
        coding_{.bits = options.bits, .nearest = options.nearest, .group = options.group},
        most_(MostCode(options)),
        largest_scale_(LargestIntegerScale(options)),
        least_scale_(kLeastMagnitude / most_) {}

  CodecId id() const override {
    if (options_.bits == 8) return CodecId::kInt8;
    return options_.bits == 4 ? CodecId::kInt4 : CodecId::kInt2;
  }
  std::string spec() const override {
    const IntegerOptions defaults;
    std::vector<std::string> options;
    if (options_.group != defaults.group) {
      options.push_back(absl::StrFormat("group=%d", options_.group));
    }
    if (options_.hadamard) options.push_back("hadamard=32");
    if (options_.nearest) options.push_back("round=nearest");
    return SpecText(absl::StrFormat("int%d", options_.bits).c_str(), options);
  }
  bool bounds_itself() const override { return true; }

  size_t MaxEncodedBytes(size_t n, DType /*dtype*/) const override {
    return CodesOffset(n) + CodeBytes(n);
  }

  absl::StatusOr<size_t> EncodeFrom(EncodeSource& source, const Draw& draw,
                                    MutableByteSpan out) const override {
    if (source.keeps_residual()) BDN_RETURN_IF_ERROR(source.CheckFinite());
    const bool finite = options_.group <= kTile ? EncodeSmallGroups(source, draw, out)
                                                : EncodeLargeGroups(source, draw, out);
    if (!finite) return source.CheckFinite();
    return MaxEncodedBytes(source.n(), source.dtype());
  }

  absl::Status Validate(ByteSpan in, size_t n, DType dtype) const override {
    BDN_RETURN_IF_ERROR(CheckSupports(*this, dtype));
    BDN_RETURN_IF_ERROR(CheckPayloadSize(*this, in.size(), MaxEncodedBytes(n, dtype), n));
    const ByteSpan codes = in.subspan(CodesOffset(n));
    if (!CodesAreValid(options_.bits, codes.data(), codes.size())) {
      return InvalidArgument("%s payload has a code below the least", spec());
    }
    for (size_t g = 0; g < NumGroups(n); ++g) {
      const float scale = LoadLittle<float>(in, g * kScaleBytes);
      // The bits are compared, since -0 is no valid scale.
      if (std::bit_cast<uint32_t>(scale) == 0) {
        const size_t begin = CodeBytes(g * options_.group);
        const size_t end = CodeBytes(std::min(n, (g + 1) * options_.group));
        if (!IsZero(codes.subspan(begin, end - begin))) {
          return InvalidArgument("%s group %d has codes but no scale", spec(), g);
        }
      } else if (!(scale >= least_scale_ && scale <= largest_scale_)) {
        return InvalidArgument("%s scale %d is %g", spec(), g, scale);
      }
    }
    if (!PaddingIsZero(codes, n)) {
      return InvalidArgument("%s payload has codes past its %d elements", spec(), n);
    }
    return absl::OkStatus();
  }

  void Decode(ByteSpan in, float scale, MutableView y) const override {
    if (!options_.hadamard && y.dtype == DType::kFloat32) {
      DequantizeGroups(coding_, in.data(), in.data() + CodesOffset(y.n), 0, y.n, scale, y.f32());
      return;
    }
    ForEachDecodedTile(
        in, y, [&](const ConstView& tile, MutableView to) { ConvertScaled(tile, scale, to); });
  }

  void DecodeAdd(ByteSpan in, float scale, MutableView y) const override {
    if (!options_.hadamard) return DecodeAddTransformed(in, scale, y);
    ForEachDecodedTile(in, y,
                       [&](const ConstView& tile, MutableView to) { AddScaled(tile, scale, to); });
  }

  void DecodeSum(std::span<const ByteSpan> in, float scale, MutableView y) const override {
    // Transformed values are added in a tile that stays in the cache, and their sum is transformed
    // back once. Tiles begin at multiples of 32, so that no block of the transform is cut.
    ForEachTile(0, y.n, [&](size_t at, size_t count) {
      const MutableView tile = y.Sub(at, count);
      std::fill_n(tile.f32(), count, 0.0f);
      for (const ByteSpan payload : in) {
        DequantizeGroupsAndAdd(coding_, payload.data(), payload.data() + CodesOffset(y.n), at,
                               count, scale, tile.f32());
      }
      InverseTransform(tile);
    });
  }

  bool Transforms() const override { return options_.hadamard; }
  void DecodeAddTransformed(ByteSpan in, float scale, MutableView y) const override {
    DequantizeGroupsAndAdd(coding_, in.data(), in.data() + CodesOffset(y.n), 0, y.n, scale,
                           y.f32());
  }
  void InverseTransform(MutableView y) const override {
    if (options_.hadamard) WalshHadamard(y.f32(), y.n, 1.0f, y.f32());
  }

 private:
  size_t NumGroups(size_t n) const { return DivideUp(n, options_.group); }
  size_t CodesOffset(size_t n) const { return NumGroups(n) * kScaleBytes; }
  size_t CodeBytes(size_t n) const {
    const size_t run = 4 * static_cast<size_t>(options_.bits);
    return n / kRun * run + std::min(n % kRun, run);
  }

  IntegerScale ScaleOf(uint32_t magnitude_bits) const {
    const float m = std::bit_cast<float>(magnitude_bits);
    if (m < kLeastMagnitude) return {};
    return {.inverse = most_ / m, .scale = std::min(m / most_, largest_scale_)};
  }

  // Returns the values to quantize: p itself, or its transform in `work`.
  const float* Transformed(const float* p, size_t count, float* work) const {
    if (!options_.hadamard) return p;
    WalshHadamard(p, count, 1.0f / kRun, work);
    return work;
  }

  // Writes the codes of a tile. `c` holds the values to quantize. Where p was taken, `taken` points
  // to it, and p - decoded is left there.
  void QuantizeTile(size_t n, const Draw& draw, size_t at, size_t count, const IntegerScale* scales,
                    const float* c, float* taken, float* work, MutableByteSpan out) const {
    std::byte* const codes = out.data() + CodesOffset(n) + CodeBytes(at);
    if (taken == nullptr) {
      // With kKeep the kernel does not write to the array.
      QuantizeGroups(coding_, draw, at, count, scales, const_cast<float*>(c), AfterQuantize::kKeep,
                     codes);
    } else if (options_.hadamard) {
      // The decoded values are still transformed, so they are transformed back before they are
      // subtracted.
      QuantizeGroups(coding_, draw, at, count, scales, work, AfterQuantize::kReplace, codes);
      WalshHadamardAndSubtract(work, count, taken);
    } else {
      QuantizeGroups(coding_, draw, at, count, scales, taken, AfterQuantize::kSubtract, codes);
    }
  }

  // Encodes groups that fit in a tile, as many at once as it holds, so that each is read once. With
  // a residual it goes backward: the check of the input ended at the end, which is still in a
  // cache. Returns false where p is not finite.
  bool EncodeSmallGroups(EncodeSource& source, const Draw& draw, MutableByteSpan out) const {
    const size_t stretch = kTile / options_.group * options_.group;
    const size_t count = DivideUp(source.n(), stretch);
    for (size_t s = 0; s < count; ++s) {
      const size_t at = (source.keeps_residual() ? count - 1 - s : s) * stretch;
      if (!EncodeStretch(source, draw, at, std::min(stretch, source.n() - at), out)) return false;
    }
    return true;
  }

  bool EncodeStretch(EncodeSource& source, const Draw& draw, size_t at, size_t count,
                     MutableByteSpan out) const {
    alignas(64) float work[kTile];
    uint32_t magnitudes[kTile / kRun];
    IntegerScale scales[kTile / kRun];
    float* const taken = source.keeps_residual() ? source.Take(at, count) : nullptr;
    const float* const p = taken == nullptr ? source.Peek(at, count) : taken;
    const float* const c = Transformed(p, count, work);
    GroupMagnitudes(c, count, options_.group, magnitudes);
    const size_t first = at / options_.group;
    for (size_t g = 0; g < NumGroups(count); ++g) {
      if (magnitudes[g] >= kInfinity) return false;
      scales[g] = ScaleOf(magnitudes[g]);
      StoreLittle(out, (first + g) * kScaleBytes, scales[g].scale);
    }
    QuantizeTile(source.n(), draw, at, count, scales, c, taken, work, out);
    return true;
  }

  // Encodes groups of several tiles: first their magnitudes, then their codes, backward. With a
  // residual all magnitudes come first, since nothing may be taken before all of p was seen to be
  // finite.
  bool EncodeLargeGroups(EncodeSource& source, const Draw& draw, MutableByteSpan out) const {
    const size_t num_groups = NumGroups(source.n());
    const size_t together = source.keeps_residual() ? num_groups : 1;
    for (size_t begin = 0; begin < num_groups; begin += together) {
      for (size_t g = begin; g < begin + together; ++g) {
        const uint32_t magnitude = LargeGroupMagnitude(source, g);
        if (magnitude >= kInfinity) return false;
        // The slot of the scale holds the magnitude until all are known.
        StoreLittle(out, g * kScaleBytes, magnitude);
      }
      for (size_t g = begin + together; g-- > begin;) {
        const IntegerScale scale = ScaleOf(LoadLittle<uint32_t>(out, g * kScaleBytes));
        StoreLittle(out, g * kScaleBytes, scale.scale);
        QuantizeLargeGroup(source, draw, g, scale, out);
      }
    }
    return true;
  }

  uint32_t LargeGroupMagnitude(EncodeSource& source, size_t g) const {
    alignas(64) float work[kTile];
    uint32_t largest = 0;
    const size_t begin = g * options_.group;
    ForEachTile(begin, std::min(source.n(), begin + options_.group), [&](size_t at, size_t count) {
      uint32_t magnitude = 0;
      GroupMagnitudes(Transformed(source.Peek(at, count), count, work), count, count, &magnitude);
      largest = std::max(largest, magnitude);
    });
    return largest;
  }

  void QuantizeLargeGroup(EncodeSource& source, const Draw& draw, size_t g, IntegerScale scale,
                          MutableByteSpan out) const {
    alignas(64) float work[kTile];
    const size_t begin = g * options_.group;
    const size_t end = std::min(source.n(), begin + options_.group);
    ForEachTileBackward(begin, end, [&](size_t at, size_t count) {
      float* const taken = source.keeps_residual() ? source.Take(at, count) : nullptr;
      const float* const p = taken == nullptr ? source.Peek(at, count) : taken;
      QuantizeTile(source.n(), draw, at, count, &scale, Transformed(p, count, work), taken, work,
                   out);
    });
  }

  // Calls visit(decoded tile as float32, that part of y) for each tile, in order.
  template <typename Visit>
  void ForEachDecodedTile(ByteSpan in, MutableView y, const Visit& visit) const {
    alignas(64) float tile[kTile];
    ForEachTile(0, y.n, [&](size_t at, size_t count) {
      DequantizeGroups(coding_, in.data(), in.data() + CodesOffset(y.n), at, count, 1.0f, tile);
      InverseTransform(MutableView{tile, DType::kFloat32, count});
      visit(ConstView{tile, DType::kFloat32, count}, y.Sub(at, count));
    });
  }

  static bool IsZero(ByteSpan bytes) {
    std::byte any{};
    for (const std::byte byte : bytes) any |= byte;
    return any == std::byte{};
  }

  // Returns whether the fields past element n, in the bytes of its run, are zero.
  bool PaddingIsZero(ByteSpan codes, size_t n) const {
    const auto bits = static_cast<size_t>(options_.bits);
    const ByteSpan last = codes.subspan(CodeBytes(n / kRun * kRun));
    for (size_t b = 0; b < last.size(); ++b) {
      for (size_t field = 0; field < 8 / bits; ++field) {
        const unsigned code =
            std::to_integer<unsigned>(last[b]) >> (field * bits) & ((1u << bits) - 1);
        if (b + 4 * bits * field >= n % kRun && code != 0) return false;
      }
    }
    return true;
  }

  const IntegerOptions options_;
  const IntegerCoding coding_;
  const float most_;           // L
  const float largest_scale_;  // S
  const float least_scale_;
};

}  // namespace

float LargestIntegerScale(const IntegerOptions& options) {
  const float limit = std::numeric_limits<float>::max();
  return LargestScale(MostCode(options), options.hadamard ? limit * (1.0f / kRun) : limit);
}

std::shared_ptr<const Codec> MakeInteger(const IntegerOptions& options) {
  return std::make_shared<IntegerCodec>(options);
}

}  // namespace bdn
