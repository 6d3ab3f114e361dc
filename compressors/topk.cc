#include "compressors/topk.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "common/base/endian.h"
#include "common/base/spec_text.h"
#include "common/base/status.h"
#include "compressors/payload.h"
#include "compressors/topk_select.h"
#include "compressors/topk_values.h"

namespace bdn {
namespace {

constexpr size_t kBlock = 65536;
constexpr size_t kWordBytes = 4;
constexpr size_t kIndexBytes = 2;

// The offsets of the parts of a payload of n elements, k of which are sent.
struct Layout {
  Layout(size_t n, size_t k, TopKValues format)
      : num_blocks(DivideUp(n, kBlock)),
        counts(kWordBytes),
        indices(counts + num_blocks * kWordBytes),
        indices_end(indices + k * kIndexBytes),
        values(AlignUp4(indices_end)),
        size(values + TopKValueBytes(format, k)) {}

  size_t num_blocks;
  size_t counts;
  size_t indices;
  size_t indices_end;
  size_t values;
  size_t size;
};

// Writes the payload but for its values.
void Write(const Selection& chosen, const Layout& layout, MutableByteSpan out) {
  const size_t k = chosen.size;
  StoreLittle(out, 0, static_cast<uint32_t>(k));
  size_t at = 0;
  for (size_t b = 0; b < layout.num_blocks; ++b) {
    const size_t first = at;
    for (; at < k && chosen.index[at] / kBlock == b; ++at) {
      StoreLittle(out, layout.indices + at * kIndexBytes, static_cast<uint16_t>(chosen.index[at]));
    }
    StoreLittle(out, layout.counts + b * kWordBytes, static_cast<uint32_t>(at - first));
  }
  std::memset(out.data() + layout.indices_end, 0, layout.values - layout.indices_end);
}

// Calls visit(element, value) for the elements that were sent, in order. REQUIRES: the payload is
// valid.
template <typename Visit>
void ForEachSent(ByteSpan in, size_t n, TopKValues format, const Visit& visit) {
  const size_t k = LoadLittle<uint32_t>(in);
  const Layout layout(n, k, format);
  WithTopKValues(format, in.subspan(layout.values), k, [&](const auto& values) {
    size_t at = 0;
    for (size_t b = 0; b < layout.num_blocks; ++b) {
      const size_t end = at + LoadLittle<uint32_t>(in, layout.counts + b * kWordBytes);
      for (; at < end; ++at) {
        visit(b * kBlock + LoadLittle<uint16_t>(in, layout.indices + at * kIndexBytes), values[at]);
      }
    }
  });
}

class TopKCodec final : public Codec {
 public:
  explicit TopKCodec(const TopKOptions& options) : options_(options) {}

  CodecId id() const override { return CodecId::kTopK; }
  std::string spec() const override {
    std::vector<std::string> options = {"ratio=" + RealText(options_.ratio)};
    if (options_.sampled) options.emplace_back("select=sampled");
    if (options_.values == TopKValues::kHalf) options.emplace_back("values=fp16");
    if (options_.values == TopKValues::kTwoBit) options.emplace_back("values=twobit");
    return SpecText("topk", options);
  }

  size_t MaxEncodedBytes(size_t n, DType /*dtype*/) const override {
    return Layout(n, MostSent(n), options_.values).size;
  }

  absl::StatusOr<size_t> EncodeFrom(EncodeSource& source, const Draw& /*draw*/,
                                    MutableByteSpan out) const override {
    const size_t n = source.n();
    const size_t k = NumSent(n);
    Selection chosen(n, k);
    BDN_RETURN_IF_ERROR(SelectTopK(source, k, options_.sampled, &chosen));
    const Layout layout(n, chosen.size, options_.values);
    Write(chosen, layout, out);
    const auto values = out.subspan(layout.values, layout.size - layout.values);
    WriteTopKValues(options_.values, {chosen.value.data(), chosen.size}, values);
    // All of p is in the residual by now. The values are subtracted as they were written, with
    // their rounding, so that the residual keeps the error.
    if (source.keeps_residual()) {
      WithTopKValues(options_.values, values, chosen.size, [&](const auto& sent) {
        for (size_t i = 0; i < chosen.size; ++i) *source.Taken(chosen.index[i]) -= sent[i];
      });
    }
    return layout.size;
  }

  absl::Status Validate(ByteSpan in, size_t n, DType dtype) const override {
    BDN_RETURN_IF_ERROR(CheckSupports(*this, dtype));
    if (in.size() < kWordBytes) return CheckPayloadSize(*this, in.size(), kWordBytes, n);
    const size_t sent = LoadLittle<uint32_t>(in);
    const size_t expected = NumSent(n);
    // A sample's threshold lets a varying number of elements through, but at least one.
    const bool may_differ = options_.sampled && sent > 0 && sent <= MostSent(n);
    if (sent != expected && !may_differ) {
      return InvalidArgument("%s payload of %d elements sends %d, expected %d", spec(), n, sent,
                             expected);
    }
    const Layout layout(n, sent, options_.values);
    BDN_RETURN_IF_ERROR(CheckPayloadSize(*this, in.size(), layout.size, n));
    BDN_RETURN_IF_ERROR(ValidateIndices(in, n, layout, sent));
    if (layout.values != layout.indices_end && LoadLittle<uint16_t>(in, layout.indices_end) != 0) {
      return InvalidArgument("%s padding is not zero", spec());
    }
    return CheckTopKValues(options_.values, in.subspan(layout.values), sent);
  }

  void Decode(ByteSpan in, float scale, MutableView y) const override {
    if (y.n == 0) return;
    std::memset(y.data, 0, y.n * DTypeSize(y.dtype));
    ForEachSent(in, y.n, options_.values,
                [&](size_t i, float value) { StoreElement(y, i, scale * value); });
  }

  void DecodeAdd(ByteSpan in, float scale, MutableView y) const override {
    float* const sum = y.f32();
    ForEachSent(in, y.n, options_.values,
                [&](size_t i, float value) { sum[i] = sum[i] + (scale * value); });
  }

 private:
  size_t NumSent(size_t n) const { return TopKCount(options_.ratio, n); }

  size_t MostSent(size_t n) const {
    return options_.sampled ? std::min(n, 2 * NumSent(n)) : NumSent(n);
  }

  // Checks the counts and the indices. REQUIRES: in.size() == layout.size.
  absl::Status ValidateIndices(ByteSpan in, size_t n, const Layout& layout, size_t k) const {
    size_t at = 0;
    for (size_t b = 0; b < layout.num_blocks; ++b) {
      const auto count = LoadLittle<uint32_t>(in, layout.counts + b * kWordBytes);
      // This bounds the loop below, which reads the indices.
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

  const TopKOptions options_;
};

}  // namespace

size_t TopKCount(double ratio, size_t n) {
  if (n == 0) return 0;
  const double wanted = std::ceil(ratio * static_cast<double>(n));
  return std::min(n, std::max<size_t>(1, static_cast<size_t>(wanted)));
}

std::shared_ptr<const Codec> MakeTopK(const TopKOptions& options) {
  return std::make_shared<TopKCodec>(options);
}

}  // namespace bdn
