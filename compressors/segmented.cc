#include "compressors/segmented.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "common/base/endian.h"
#include "common/base/status.h"
#include "compressors/memory/delta.h"
#include "compressors/payload.h"
#include "compressors/scratch.h"

namespace bdn {
namespace {

constexpr size_t kEntryBytes = 4;

// Zeros up to the next multiple of 4; returns that size.
size_t PadTo4(MutableByteSpan out, size_t used) {
  const size_t padded = AlignUp4(used);
  std::fill(out.begin() + used, out.begin() + padded, std::byte{0});
  return padded;
}

}  // namespace

SegmentedCodec::SegmentedCodec(std::shared_ptr<const Codec> codec,
                               std::vector<size_t> segment_elements, DType dtype)
    : codec_(std::move(codec)), dtype_(dtype), elements_(std::move(segment_elements)) {
  offsets_.reserve(elements_.size());
  for (const size_t n : elements_) {
    offsets_.push_back(total_);
    total_ += n;
    max_bytes_ += AlignUp4(codec_->MaxEncodedBytes(n, dtype_));
  }
  if (elements_.size() == 1) {
    max_bytes_ = codec_->MaxEncodedBytes(total_, dtype_);
  } else {
    max_bytes_ += elements_.size() * kEntryBytes;
  }
}

template <typename IsPresent, typename EncodeOne>
absl::StatusOr<size_t> SegmentedCodec::Fill(const Draw& draw, MutableByteSpan out,
                                            const IsPresent& present,
                                            const EncodeOne& encode) const {
  if (num_segments() == 1) return encode(0, draw, out);
  size_t used = num_segments() * kEntryBytes;
  for (size_t i = 0; i < num_segments(); ++i) {
    if (!present(i)) {
      StoreLittle(out, i * kEntryBytes, kAbsentSegment);
      continue;
    }
    const absl::StatusOr<size_t> size =
        encode(i, draw.Part(static_cast<uint32_t>(i)), out.subspan(used));
    if (!size.ok()) return Annotate(size.status(), absl::StrFormat("segment %d", i));
    StoreLittle(out, i * kEntryBytes, static_cast<uint32_t>(*size));
    used = PadTo4(out, used + *size);
  }
  return used;
}

absl::StatusOr<size_t> SegmentedCodec::Encode(std::span<const Input> inputs, const Draw& draw,
                                              MutableByteSpan out) const {
  return Fill(
      draw, out, [&](size_t i) { return inputs[i].present; },
      [&](size_t i, const Draw& part, MutableByteSpan rest) {
        return codec_->Encode(inputs[i].x, inputs[i].scale, part, rest);
      });
}

absl::StatusOr<size_t> SegmentedCodec::EncodeFeedback(std::span<const FeedbackInput> inputs,
                                                      const Draw& draw, MutableByteSpan out) const {
  // A codec checks its segment before it changes anything; with several, all are checked before any
  // is changed.
  for (size_t i = 0; num_segments() > 1 && i < num_segments(); ++i) {
    if (!inputs[i].present) continue;
    const absl::Status finite = EncodeSource(inputs[i].feedback).CheckFinite();
    if (!finite.ok()) return Annotate(finite, absl::StrFormat("segment %d", i));
  }
  return Fill(
      draw, out, [&](size_t i) { return inputs[i].present; },
      [&](size_t i, const Draw& part, MutableByteSpan rest) {
        return codec_->EncodeFeedback(inputs[i].feedback, part, rest);
      });
}

absl::StatusOr<size_t> SegmentedCodec::EncodeDelta(std::span<const DeltaInput> inputs,
                                                   const Draw& draw, MutableByteSpan out) const {
  const auto weights = [&](size_t i) {
    return ConstView{inputs[i].weights, DType::kFloat32, elements_[i]};
  };
  for (size_t i = 0; num_segments() > 1 && i < num_segments(); ++i) {
    if (!inputs[i].present) continue;
    const absl::Status finite = EncodeSource(weights(i), inputs[i].replica).CheckFinite();
    if (!finite.ok()) return Annotate(finite, absl::StrFormat("segment %d", i));
  }
  return Fill(
      draw, out, [&](size_t i) { return inputs[i].present; },
      [&](size_t i, const Draw& part, MutableByteSpan rest) {
        return bdn::EncodeDelta(*codec_, weights(i), part, inputs[i].replica, rest);
      });
}

absl::Status SegmentedCodec::Validate(ByteSpan in) const {
  if (num_segments() == 1) return codec_->Validate(in, total_, dtype_);
  size_t used = num_segments() * kEntryBytes;
  if (in.size() < used) {
    return InvalidArgument("payload has %d bytes, its table of %d segments takes %d", in.size(),
                           num_segments(), used);
  }
  bool any_present = false;
  for (size_t i = 0; i < num_segments(); ++i) {
    const auto size = LoadLittle<uint32_t>(in, i * kEntryBytes);
    if (size == kAbsentSegment) continue;
    any_present = true;
    const size_t left = in.size() - used;
    if (left < size || left < AlignUp4(size)) {
      return InvalidArgument("segment %d has %d bytes, %d are left", i, size, left);
    }
    const absl::Status segment = codec_->Validate(in.subspan(used, size), elements_[i], dtype_);
    if (!segment.ok()) return Annotate(segment, absl::StrFormat("segment %d", i));
    const ByteSpan padding = in.subspan(used + size, AlignUp4(size) - size);
    if (std::any_of(padding.begin(), padding.end(),
                    [](std::byte b) { return b != std::byte{0}; })) {
      return InvalidArgument("segment %d is padded with other than zeros", i);
    }
    used += AlignUp4(size);
  }
  if (!any_present) return InvalidArgument("all %d segments are absent", num_segments());
  if (used != in.size()) {
    return InvalidArgument("payload has %d bytes past its last segment", in.size() - used);
  }
  return absl::OkStatus();
}

absl::Status SegmentedCodec::CheckDraw(ByteSpan in, const Draw& draw) const {
  const size_t table = num_segments() == 1 ? 0 : num_segments() * kEntryBytes;
  size_t begin = table;
  for (size_t i = 0; i < num_segments(); ++i) {
    if (!Present(in, i)) continue;
    const size_t size = table == 0 ? in.size() : LoadLittle<uint32_t>(in, i * kEntryBytes);
    const ByteSpan payload = in.subspan(begin, size);
    begin += AlignUp4(size);
    if (payload.empty()) continue;
    const Draw part = draw.Part(static_cast<uint32_t>(i));
    const auto k0 = LoadLittle<uint32_t>(payload);
    const auto k1 = LoadLittle<uint32_t>(payload, sizeof(uint32_t));
    if (k0 == part.k0() && k1 == part.k1()) continue;
    return InvalidArgument(
        "segment %d: %s was drawn by keys %08x %08x, where all draw by %08x %08x: is its run seed "
        "another?",
        i, codec_->spec(), k0, k1, part.k0(), part.k1());
  }
  return absl::OkStatus();
}

bool SegmentedCodec::Present(ByteSpan in, size_t i) const {
  return num_segments() == 1 || LoadLittle<uint32_t>(in, i * kEntryBytes) != kAbsentSegment;
}

ByteSpan SegmentedCodec::SegmentPayload(ByteSpan in, size_t i) const {
  if (num_segments() == 1) return in;
  size_t begin = num_segments() * kEntryBytes;
  for (size_t j = 0; j < i; ++j) {
    if (Present(in, j)) begin += AlignUp4(LoadLittle<uint32_t>(in, j * kEntryBytes));
  }
  return in.subspan(begin, LoadLittle<uint32_t>(in, i * kEntryBytes));
}

void SegmentedCodec::DecodeSegment(ByteSpan in, size_t i, float scale, MutableView y) const {
  if (Present(in, i)) codec_->Decode(SegmentPayload(in, i), scale, y);
}

void SegmentedCodec::DecodeAddSegment(ByteSpan in, size_t i, float scale, MutableView y) const {
  if (Present(in, i)) codec_->DecodeAdd(SegmentPayload(in, i), scale, y);
}

size_t SegmentedCodec::SegmentPayloads(std::span<const ByteSpan> in, size_t i,
                                       std::span<ByteSpan> payloads) const {
  size_t count = 0;
  for (const ByteSpan payload : in) {
    if (Present(payload, i)) payloads[count++] = SegmentPayload(payload, i);
  }
  return count;
}

void SegmentedCodec::DecodeSum(std::span<const ByteSpan> in, MutableView y) const {
  const ScratchArray<ByteSpan> payloads(in.size());
  for (size_t i = 0; i < num_segments(); ++i) {
    const size_t count = SegmentPayloads(in, i, payloads.span());
    codec_->DecodeSum(payloads.span().first(count), 1.0f, y.Sub(offsets_[i], elements_[i]));
  }
}

void SegmentedCodec::DecodeAddTransformed(std::span<const ByteSpan> in, MutableView y) const {
  for (size_t i = 0; i < num_segments(); ++i) {
    const MutableView segment = y.Sub(offsets_[i], elements_[i]);
    for (const ByteSpan payload : in) {
      if (Present(payload, i)) {
        codec_->DecodeAddTransformed(SegmentPayload(payload, i), 1.0f, segment);
      }
    }
  }
}

void SegmentedCodec::InverseTransform(MutableView y) const {
  if (!codec_->Transforms()) return;
  for (size_t i = 0; i < num_segments(); ++i) {
    codec_->InverseTransform(y.Sub(offsets_[i], elements_[i]));
  }
}

absl::StatusOr<size_t> SegmentedCodec::AddEncoded(std::span<const ByteSpan> in, float scale,
                                                  MutableByteSpan out) const {
  const ScratchArray<ByteSpan> payloads(in.size());
  return Fill(
      Draw(), out,
      [&](size_t i) {
        return std::any_of(in.begin(), in.end(),
                           [&](ByteSpan payload) { return Present(payload, i); });
      },
      [&](size_t i, const Draw&, MutableByteSpan rest) {
        const size_t count = SegmentPayloads(in, i, payloads.span());
        return codec_->AddEncoded(payloads.span().first(count), scale, elements_[i], dtype_, rest);
      });
}

}  // namespace bdn
