#include "compressors/drawn.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "common/base/endian.h"
#include "common/base/spec_text.h"
#include "common/base/status.h"
#include "compressors/drawn_blocks.h"
#include "compressors/payload.h"
#include "kernels/clamp_to_finite.h"
#include "kernels/float_kernels.h"

namespace bdn {
namespace {

constexpr size_t kKeysBytes = 8;
constexpr size_t kValueBytes = 4;
constexpr size_t kDefaultSize = 1024;
// Stretches of at least this many elements are worth a call of a kernel.
constexpr size_t kKernelSize = 16;
// DecodeAdd asks for the cache lines of elements this far ahead, as single elements lie far apart.
constexpr size_t kAhead = 48;

// Magnitude(value) is at least kNonFinite exactly when `value` is NaN or infinite.
constexpr uint32_t kNonFinite = 0x7f800000u;
uint32_t Magnitude(float value) { return std::bit_cast<uint32_t>(value) & 0x7fffffffu; }

Draw KeysOf(ByteSpan in) {
  return Draw::FromKeys(LoadLittle<uint32_t>(in), LoadLittle<uint32_t>(in, sizeof(uint32_t)));
}

ConstView Values(ByteSpan in) {
  return {in.data() + kKeysBytes, DType::kFloat32, (in.size() - kKeysBytes) / kValueBytes};
}

float ValueAt(ByteSpan in, size_t i) { return LoadLittle<float>(in, kKeysBytes + i * kValueBytes); }

class DrawnCodec final : public Codec {
 public:
  DrawnCodec(CodecId id, double ratio, size_t size, bool unbiased)
      : id_(id),
        ratio_(ratio),
        size_(size),
        unbiased_(unbiased),
        factor_(unbiased ? ClampToFinite(static_cast<float>(1.0 / ratio)) : 1.0f) {}

  CodecId id() const override { return id_; }
  std::string spec() const override {
    std::vector<std::string> options = {"ratio=" + RealText(ratio_)};
    if (unbiased_) options.emplace_back("unbiased=true");
    if (id_ == CodecId::kRandomK) return SpecText("randomk", options);
    if (size_ != kDefaultSize) options.push_back(absl::StrFormat("size=%d", size_));
    return SpecText("blocks", options);
  }
  bool shares_draw() const override { return true; }
  bool scales_draw() const override { return unbiased_; }
  bool linear() const override { return true; }
  bool carries_sums() const override { return true; }

  size_t MaxEncodedBytes(size_t n, DType /*dtype*/) const override {
    if (n == 0) return 0;
    // u is below 1, so this u gives the largest number of blocks that any draw chooses.
    const size_t most = DrawnBlocks::Count(ratio_, DivideUp(n, size_), 1 - 0x1p-32);
    return kKeysBytes + std::min(n, most * size_) * kValueBytes;
  }

  absl::StatusOr<size_t> EncodeFrom(EncodeSource& source, const Draw& draw,
                                    MutableByteSpan out) const override {
    if (source.n() == 0) return 0;
    const DrawnBlocks blocks(draw, ratio_, size_, source.n());
    const DrawnStretches stretches(blocks, size_, source.n());
    StoreLittle(out, 0, draw.k0());
    StoreLittle(out, sizeof(uint32_t), draw.k1());
    if (source.keeps_residual()) {
      // With a residual every element is taken, and not only the drawn ones, so all are checked.
      BDN_RETURN_IF_ERROR(source.CheckFinite());
      TakeAll(source, stretches, out);
    } else {
      BDN_RETURN_IF_ERROR(Gather(source, stretches, out));
    }
    return kKeysBytes + blocks.num_values() * kValueBytes;
  }

  absl::Status Validate(ByteSpan in, size_t n, DType dtype) const override {
    BDN_RETURN_IF_ERROR(CheckSupports(*this, dtype));
    // The keys decide how many values there must be, so they have to be there before the size can
    // be checked.
    if (n == 0 || in.size() < kKeysBytes) {
      return CheckPayloadSize(*this, in.size(), n == 0 ? 0 : kKeysBytes, n);
    }
    const DrawnBlocks blocks(KeysOf(in), ratio_, size_, n);
    BDN_RETURN_IF_ERROR(
        CheckPayloadSize(*this, in.size(), kKeysBytes + blocks.num_values() * kValueBytes, n));
    return CheckFinite(Values(in), 1.0f);
  }

  void Decode(ByteSpan in, float scale, MutableView y) const override {
    if (y.n == 0) return;
    std::memset(y.data, 0, y.n * DTypeSize(y.dtype));
    ForEachStretch(in, y.n, [&](ConstView values, size_t value, size_t begin) {
      if (values.n >= kKernelSize) return ConvertScaled(values, scale, y.Sub(begin, values.n));
      for (size_t i = 0; i < values.n; ++i) {
        StoreElement(y, begin + i, scale * ValueAt(in, value + i));
      }
    });
  }

  void DecodeAdd(ByteSpan in, float scale, MutableView y) const override {
    if (y.n == 0) return;
    float* const sum = y.f32();
    // Single elements have no runs to convert, and a plain loop can fetch ahead.
    if (size_ == 1) {
      const DrawnStretches stretches(DrawnBlocks(KeysOf(in), ratio_, size_, y.n), size_, y.n);
      const std::span<const uint32_t> elements = stretches.blocks();
      const std::byte* const values = in.data() + kKeysBytes;
      for (size_t i = 0; i < elements.size(); ++i) {
        float value;
        std::memcpy(&value, values + i * kValueBytes, kValueBytes);
        if (i + kAhead < elements.size()) __builtin_prefetch(sum + elements[i + kAhead], 1);
        float& to = sum[elements[i]];
        to = to + (scale * value);
      }
      return;
    }
    ForEachStretch(in, y.n, [&](ConstView values, size_t value, size_t begin) {
      if (values.n >= kKernelSize) return AddScaled(values, scale, y.Sub(begin, values.n));
      for (size_t i = 0; i < values.n; ++i) {
        sum[begin + i] = sum[begin + i] + (scale * ValueAt(in, value + i));
      }
    });
  }

  absl::StatusOr<size_t> AddEncoded(std::span<const ByteSpan> in, float scale, size_t n,
                                    DType /*dtype*/, MutableByteSpan out) const override {
    if (n == 0) return 0;
    for (size_t i = 1; i < in.size(); ++i) {
      if (std::memcmp(in[i].data(), in[0].data(), kKeysBytes) != 0) {
        return FailedPrecondition("%s payload %d was not drawn as payload 0", spec(), i);
      }
    }
    // By equal keys all payloads have the same elements, and so the same size.
    std::memcpy(out.data(), in[0].data(), kKeysBytes);
    const size_t size = in[0].size();
    const MutableView sums{out.data() + kKeysBytes, DType::kFloat32,
                           (size - kKeysBytes) / kValueBytes};
    ForEachTile(0, sums.n, [&](size_t at, size_t count) {
      float tile[kTile];
      const MutableView sum{tile, DType::kFloat32, count};
      std::memset(tile, 0, count * sizeof(float));
      for (const ByteSpan payload : in) AddScaled(Values(payload).Sub(at, count), 1.0f, sum);
      ConvertScaled(sum, scale, sums.Sub(at, count));
    });
    BDN_RETURN_IF_ERROR(CheckFinite(sums, 1.0f));
    return size;
  }

 private:
  // Returns d of drawn.h for a drawn element.
  float Sent(float p) const { return ClampToFinite(p * factor_) + 0.0f; }

  // Calls visit(values of a stretch, index of its first value, its first element) for each stretch.
  template <typename Visit>
  void ForEachStretch(ByteSpan in, size_t n, const Visit& visit) const {
    const DrawnStretches stretches(DrawnBlocks(KeysOf(in), ratio_, size_, n), size_, n);
    const ConstView values = Values(in);
    for (size_t i = 0; i < stretches.count(); ++i) {
      visit(values.Sub(stretches.value(i), stretches.length(i)), stretches.value(i),
            stretches.begin(i));
    }
  }

  absl::Status Gather(EncodeSource& source, const DrawnStretches& stretches,
                      MutableByteSpan out) const {
    // Single elements of an array that needs no conversion are read where they lie.
    if (const float* p = source.in_place(); p != nullptr && size_ == 1) {
      return GatherElements(p, stretches.blocks(), out);
    }
    // A Peek reads `window` elements: a single one where drawn elements lie far apart, else a tile,
    // so that conversions come in long runs.
    const size_t window = ratio_ * kTile < 64 ? 1 : kTile;
    const float* p = nullptr;
    size_t peeked = 0;
    size_t peeked_end = 0;
    for (size_t i = 0; i < stretches.count(); ++i) {
      const size_t end = stretches.begin(i) + stretches.length(i);
      size_t value = stretches.value(i);
      for (size_t at = stretches.begin(i); at < end;) {
        if (at >= peeked_end) {
          const size_t wanted = std::max(window, std::min(kTile, end - at));
          peeked = at;
          peeked_end = std::min(source.n(), at + wanted);
          p = source.Peek(peeked, peeked_end - peeked);
        }
        const size_t count = std::min(end, peeked_end) - at;
        BDN_RETURN_IF_ERROR(GatherPart(p + (at - peeked), count, value, at, out));
        at += count;
        value += count;
      }
    }
    return absl::OkStatus();
  }

  absl::Status GatherElements(const float* p, std::span<const uint32_t> elements,
                              MutableByteSpan out) const {
    uint32_t largest = 0;
    std::byte* const to = out.data() + kKeysBytes;
    for (size_t i = 0; i < elements.size(); ++i) {
      const float value = p[elements[i]];
      largest = std::max(largest, Magnitude(value));
      const float sent = Sent(value);
      std::memcpy(to + i * kValueBytes, &sent, kValueBytes);
    }
    // The largest magnitude tells whether all are finite, without a branch for each element.
    if (largest < kNonFinite) return absl::OkStatus();
    const auto bad = std::find_if(elements.begin(), elements.end(),
                                  [&](uint32_t i) { return Magnitude(p[i]) >= kNonFinite; });
    return NonFiniteElement(*bad, p[*bad]);
  }

  absl::Status GatherPart(const float* p, size_t count, size_t value, size_t at,
                          MutableByteSpan out) const {
    uint32_t largest = 0;
    std::byte* const to = out.data() + kKeysBytes + value * kValueBytes;
    for (size_t i = 0; i < count; ++i) {
      largest = std::max(largest, Magnitude(p[i]));
      const float sent = Sent(p[i]);
      std::memcpy(to + i * kValueBytes, &sent, kValueBytes);
    }
    if (largest < kNonFinite) return absl::OkStatus();
    const size_t bad = FirstNonFinite({p, DType::kFloat32, count}, 1.0f);
    return NonFiniteElement(at + bad, p[bad]);
  }

  // Takes all of p and writes the drawn elements. REQUIRES: p is finite.
  void TakeAll(EncodeSource& source, const DrawnStretches& stretches, MutableByteSpan out) const {
    // The stretches in [i, later) have elements in the tile.
    size_t i = stretches.count();
    size_t later = i;
    ForEachTileBackward(0, source.n(), [&](size_t at, size_t count) {
      float* const p = source.Take(at, count);
      while (i > 0 && stretches.begin(i - 1) + stretches.length(i - 1) > at) --i;
      for (size_t s = i; s < later; ++s) {
        const size_t begin = std::max(at, stretches.begin(s));
        const size_t end = std::min(at + count, stretches.begin(s) + stretches.length(s));
        const size_t value = stretches.value(s) + (begin - stretches.begin(s));
        for (size_t j = begin; j < end; ++j) {
          const float sent = Sent(p[j - at]);
          StoreLittle(out, kKeysBytes + (value + (j - begin)) * kValueBytes, sent);
          p[j - at] = p[j - at] - sent;
        }
      }
      // Tiles come backward: a stretch that begins before this tile has elements in the next tile,
      // too.
      later = i < later && stretches.begin(i) < at ? i + 1 : i;
    });
  }

  const CodecId id_;
  const double ratio_;
  const size_t size_;
  const bool unbiased_;
  const float factor_;
};

}  // namespace

std::shared_ptr<const Codec> MakeRandomK(const RandomKOptions& options) {
  return std::make_shared<DrawnCodec>(CodecId::kRandomK, options.ratio, 1, options.unbiased);
}

std::shared_ptr<const Codec> MakeBlocks(const BlocksOptions& options) {
  return std::make_shared<DrawnCodec>(CodecId::kBlocks, options.ratio, options.size, false);
}

}  // namespace bdn
