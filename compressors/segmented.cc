#include "compressors/segmented.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "common/base/endian.h"
#include "common/base/status.h"
#include "compressors/payload.h"

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

SegmentedCodec::SegmentedCodec(std::shared_ptr<const Compressor> codec,
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

absl::StatusOr<size_t> SegmentedCodec::Encode(std::span<const Input> inputs, const Draw& draw,
                                              MutableByteSpan out) const {
  if (num_segments() == 1) return codec_->Encode(inputs[0].x, inputs[0].scale, draw, out);
  size_t used = num_segments() * kEntryBytes;
  for (size_t i = 0; i < num_segments(); ++i) {
    if (!inputs[i].present) {
      StoreLittle(out, i * kEntryBytes, kAbsentSegment);
      continue;
    }
    const auto size = codec_->Encode(inputs[i].x, inputs[i].scale, draw, out.subspan(used));
    if (!size.ok()) return Annotate(size.status(), absl::StrFormat("segment %d", i));
    StoreLittle(out, i * kEntryBytes, static_cast<uint32_t>(*size));
    used = PadTo4(out, used + *size);
  }
  return used;
}

size_t SegmentedCodec::EncodeResidual(std::span<const uint8_t> present, float* residual,
                                      const Draw& draw, MutableByteSpan out) const {
  if (num_segments() == 1) return codec_->EncodeResidual(residual, total_, draw, out);
  size_t used = num_segments() * kEntryBytes;
  for (size_t i = 0; i < num_segments(); ++i) {
    if (present[i] == 0) {
      StoreLittle(out, i * kEntryBytes, kAbsentSegment);
      continue;
    }
    const size_t size =
        codec_->EncodeResidual(residual + offsets_[i], elements_[i], draw, out.subspan(used));
    StoreLittle(out, i * kEntryBytes, static_cast<uint32_t>(size));
    used = PadTo4(out, used + size);
  }
  return used;
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

}  // namespace bdn
