#include "compressors/topk.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <string>

#include "common/base/endian.h"
#include "common/base/status.h"
#include "compressors/payload.h"
#include "compressors/topk_select.h"

namespace bdn {
namespace {

constexpr size_t kBlock = 65536;
constexpr size_t kWordBytes = 4;
constexpr size_t kIndexBytes = 2;
constexpr size_t kValueBytes = 4;

// Where the parts of a payload of n elements, k of them sent, begin.
struct Layout {
  Layout(size_t n, size_t k)
      : num_blocks(DivideUp(n, kBlock)),
        counts(kWordBytes),
        indices(counts + num_blocks * kWordBytes),
        indices_end(indices + k * kIndexBytes),
        values(AlignUp4(indices_end)),
        size(values + k * kValueBytes) {}

  size_t num_blocks;
  size_t counts;
  size_t indices;
  size_t indices_end;
  size_t values;
  size_t size;
};

void Write(const Selection& chosen, size_t n, MutableByteSpan out) {
  const size_t k = chosen.index.size();
  const Layout layout(n, k);
  StoreLittle(out, 0, static_cast<uint32_t>(k));
  size_t at = 0;
  for (size_t b = 0; b < layout.num_blocks; ++b) {
    const size_t first = at;
    for (; at < k && chosen.index[at] / kBlock == b; ++at) {
      StoreLittle(out, layout.indices + at * kIndexBytes, static_cast<uint16_t>(chosen.index[at]));
    }
    StoreLittle(out, layout.counts + b * kWordBytes, static_cast<uint32_t>(at - first));
  }
  std::fill(out.begin() + layout.indices_end, out.begin() + layout.values, std::byte{0});
  if (k > 0) std::memcpy(out.data() + layout.values, chosen.value.data(), k * kValueBytes);
}

// visit(element, value) in order. REQUIRES: the payload is valid.
template <typename Visit>
void ForEachSent(ByteSpan in, size_t n, const Visit& visit) {
  const Layout layout(n, LoadLittle<uint32_t>(in));
  size_t at = 0;
  for (size_t b = 0; b < layout.num_blocks; ++b) {
    const size_t end = at + LoadLittle<uint32_t>(in, layout.counts + b * kWordBytes);
    for (; at < end; ++at) {
      visit(b * kBlock + LoadLittle<uint16_t>(in, layout.indices + at * kIndexBytes),
            LoadLittle<float>(in, layout.values + at * kValueBytes));
    }
  }
}

void StoreElement(MutableView y, size_t i, float value) {
  if (y.dtype == DType::kFloat32) {
    y.f32()[i] = value;
    return;
  }
  static_cast<uint16_t*>(y.data)[i] =
      y.dtype == DType::kFloat16 ? FloatToHalf(value) : FloatToBFloat16(value);
}

class TopKCodec final : public Compressor {
 public:
  explicit TopKCodec(double ratio) : ratio_(ratio) {}

  CodecId id() const override { return CodecId::kTopK; }
  std::string spec() const override {
    char digits[32];  // the shortest decimal that reads back as the same double
    const auto end = std::to_chars(digits, digits + sizeof(digits), ratio_).ptr;
    return "topk(ratio=" + std::string(digits, end) + ")";
  }

  size_t MaxEncodedBytes(size_t n, DType /*dtype*/) const override {
    return Layout(n, NumSent(n)).size;
  }

  absl::StatusOr<size_t> Encode(ConstView x, float scale, const Draw& /*draw*/,
                                MutableByteSpan out) const override {
    BDN_RETURN_IF_ERROR(CheckFinite(x, scale));
    Write(SelectTopK(x, scale, NumSent(x.n)), x.n, out);
    return MaxEncodedBytes(x.n, x.dtype);
  }

  size_t EncodeResidual(float* residual, size_t n, const Draw& /*draw*/,
                        MutableByteSpan out) const override {
    const Selection chosen = SelectTopK(ConstView{residual, DType::kFloat32, n}, 1.0f, NumSent(n));
    Write(chosen, n, out);
    for (const uint32_t i : chosen.index) residual[i] = 0.0f;
    return MaxEncodedBytes(n, DType::kFloat32);
  }

  absl::Status Validate(ByteSpan in, size_t n, DType dtype) const override {
    BDN_RETURN_IF_ERROR(CheckSupports(*this, dtype));
    const size_t k = NumSent(n);
    const Layout layout(n, k);
    BDN_RETURN_IF_ERROR(CheckPayloadSize(*this, in.size(), layout.size, n));
    if (const auto sent = LoadLittle<uint32_t>(in); sent != k) {
      return InvalidArgument("%s payload of %d elements sends %d, expected %d", spec(), n, sent, k);
    }
    BDN_RETURN_IF_ERROR(ValidateIndices(in, n, layout, k));
    for (size_t i = layout.indices_end; i < layout.values; ++i) {
      if (in[i] != std::byte{0}) return InvalidArgument("%s padding is not zero", spec());
    }
    return CheckFinite(ConstView{in.data() + layout.values, DType::kFloat32, k}, 1.0f);
  }

  void Decode(ByteSpan in, float scale, MutableView y) const override {
    if (y.n == 0) return;
    std::memset(y.data, 0, y.n * DTypeSize(y.dtype));
    ForEachSent(in, y.n, [&](size_t i, float value) { StoreElement(y, i, scale * value); });
  }

  void DecodeAdd(ByteSpan in, float scale, MutableView y) const override {
    float* const sum = y.f32();
    ForEachSent(in, y.n, [&](size_t i, float value) { sum[i] = sum[i] + (scale * value); });
  }

 private:
  size_t NumSent(size_t n) const {
    if (n == 0) return 0;
    const double wanted = std::ceil(ratio_ * static_cast<double>(n));
    return std::min(n, std::max<size_t>(1, static_cast<size_t>(wanted)));
  }

  // REQUIRES: in.size() == layout.size.
  absl::Status ValidateIndices(ByteSpan in, size_t n, const Layout& layout, size_t k) const {
    size_t at = 0;
    for (size_t b = 0; b < layout.num_blocks; ++b) {
      const auto count = LoadLittle<uint32_t>(in, layout.counts + b * kWordBytes);
      if (count > k - at) {
        return InvalidArgument("%s block %d counts %d elements, %d are left", spec(), b, count,
                               k - at);
      }
      const size_t block_elements = std::min(kBlock, n - b * kBlock);
      size_t least = 0;
      for (const size_t end = at + count; at < end; ++at) {
        const size_t index = LoadLittle<uint16_t>(in, layout.indices + at * kIndexBytes);
        if (index < least || index >= block_elements) {
          return InvalidArgument("%s index %d of block %d is out of range or order", spec(), index,
                                 b);
        }
        least = index + 1;
      }
    }
    if (at == k) return absl::OkStatus();
    return InvalidArgument("%s blocks count %d elements, expected %d", spec(), at, k);
  }

  const double ratio_;
};

}  // namespace

std::shared_ptr<const Compressor> MakeTopK(double ratio) {
  return std::make_shared<TopKCodec>(ratio);
}

}  // namespace bdn
