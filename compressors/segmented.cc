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

// Writes zeros up to the next multiple of 4, and returns that size.
size_t PadTo4(MutableByteSpan out, size_t used) {
  const size_t padded = AlignUp4(used);
  std::fill(out.begin() + used, out.begin() + padded, std::byte{0});
  return padded;
}

// A reader of several payloads of one key, segment after segment. Owned by one call.
class SegmentsOfAll {
 public:
  SegmentsOfAll(const SegmentedCodec& codec, std::span<const ByteSpan> in)
      : segments_(in.size()), payloads_(in.size()) {
    for (size_t i = 0; i < in.size(); ++i) std::construct_at(&segments_[i], codec, in[i]);
  }

  // Returns the next segment's payloads, in order, without those in which it is absent. Valid until
  // the next call.
  std::span<const ByteSpan> Next() {
    size_t count = 0;
    for (SegmentedCodec::Segments& segments : segments_.span()) {
      if (const auto payload = segments.Next()) payloads_[count++] = *payload;
    }
    return payloads_.span().first(count);
  }

 private:
  const ScratchArray<SegmentedCodec::Segments> segments_;
  const ScratchArray<ByteSpan> payloads_;
};

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
  // A single segment has neither a table nor padding.
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
    // Each segment draws by a part of its own: they do not share random numbers.
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
  // A codec checks its own segment before it changes anything. With several segments, all are
  // checked before any is changed.
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

SegmentedCodec::Segments::Segments(const SegmentedCodec& codec, ByteSpan in)
    : codec_(&codec),
      in_(in),
      begin_(codec.num_segments() == 1 ? 0 : codec.num_segments() * kEntryBytes) {}

std::optional<ByteSpan> SegmentedCodec::Segments::Next() {
  const size_t i = i_++;
  if (codec_->num_segments() == 1) return in_;
  const auto entry = LoadLittle<uint32_t>(in_, i * kEntryBytes);
  if (entry == kAbsentSegment) return std::nullopt;
  const Codec& codec = codec_->codec();
  // A payload that bounds itself has one size, whatever the table says: its bytes may have changed
  // since they were validated.
  const size_t size = codec.bounds_itself()
                          ? codec.MaxEncodedBytes(codec_->segment_elements(i), codec_->dtype())
                          : entry;
  const size_t begin = std::exchange(begin_, begin_ + AlignUp4(size));
  // For the same reason a segment must not reach past the payload.
  if (begin + size > in_.size()) return std::nullopt;
  return in_.subspan(begin, size);
}

absl::Status SegmentedCodec::CheckDraw(ByteSpan in, const Draw& draw) const {
  Segments segments(*this, in);
  for (size_t i = 0; i < num_segments(); ++i) {
    const ByteSpan payload = segments.Next().value_or(ByteSpan());
    // An absent segment has no payload, and one of no elements has no keys.
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

void SegmentedCodec::DecodeSum(std::span<const ByteSpan> in, MutableView y) const {
  SegmentsOfAll segments(*this, in);
  for (size_t i = 0; i < num_segments(); ++i) {
    codec_->DecodeSum(segments.Next(), 1.0f, y.Sub(offsets_[i], elements_[i]));
  }
}

void SegmentedCodec::DecodeAddTransformed(std::span<const ByteSpan> in, MutableView y) const {
  SegmentsOfAll segments(*this, in);
  for (size_t i = 0; i < num_segments(); ++i) {
    const MutableView segment = y.Sub(offsets_[i], elements_[i]);
    for (const ByteSpan payload : segments.Next()) {
      codec_->DecodeAddTransformed(payload, 1.0f, segment);
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
  SegmentsOfAll segments(*this, in);
  std::span<const ByteSpan> payloads;
  // Fill does not ask for the presence of a single segment, which would read the payloads.
  if (num_segments() == 1) payloads = segments.Next();
  return Fill(
      Draw(), out,
      [&](size_t) {
        payloads = segments.Next();
        return !payloads.empty();
      },
      [&](size_t i, const Draw&, MutableByteSpan rest) {
        return codec_->AddEncoded(payloads, scale, elements_[i], dtype_, rest);
      });
}

}  // namespace bdn
