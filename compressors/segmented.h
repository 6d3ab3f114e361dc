#ifndef BANDONEON_COMPRESSORS_SEGMENTED_H_
#define BANDONEON_COMPRESSORS_SEGMENTED_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/bytes.h"
#include "compressors/codec.h"

namespace bdn {

// A codec of the payload of one key: a partition of one tensor, or a group of small tensors in
// which each tensor keeps a scale and a budget of its own. With one segment the payload is the
// codec's. With several it is a table of one uint32 length for each segment (kAbsentSegment where
// that tensor had no gradient), then the codec's payloads, each padded with zeros to a multiple of
// 4 bytes. proto/wire_format.md has an example.
//
// Const after construction, thread-safe.
class SegmentedCodec {
 public:
  static constexpr uint32_t kAbsentSegment = 0xffffffffu;

  // The input of one segment. `present` false means that it has no gradient; its data are not read
  // then.
  struct Input {
    ConstView x;
    float scale = 1.0f;
    bool present = true;
  };

  // REQUIRES: codec->Supports(dtype); at least one segment.
  SegmentedCodec(std::shared_ptr<const Codec> codec, std::vector<size_t> segment_elements,
                 DType dtype);

  const Codec& codec() const { return *codec_; }
  const std::shared_ptr<const Codec>& shared_codec() const { return codec_; }
  DType dtype() const { return dtype_; }
  size_t num_segments() const { return elements_.size(); }
  size_t num_elements() const { return total_; }
  size_t segment_elements(size_t i) const { return elements_[i]; }
  size_t segment_offset(size_t i) const { return offsets_[i]; }
  size_t MaxEncodedBytes() const { return max_bytes_; }
  // Returns Codec::bounds_itself. Where it is true, decoding does not trust the lengths in the
  // table.
  bool bounds_itself() const { return codec_->bounds_itself(); }

  // Encodes without a residual or replica; returns the bytes used. Returns InvalidArgument where an
  // element of a present segment is not finite; then `out` is unspecified. REQUIRES: inputs.size()
  // == num_segments(), sizes equal the segments', at least one is present, out.size() >=
  // MaxEncodedBytes().
  absl::StatusOr<size_t> Encode(std::span<const Input> inputs, const Draw& draw,
                                MutableByteSpan out) const;

  // One segment's step of error feedback. With `present` false nothing is read or changed.
  struct FeedbackInput {
    Feedback feedback;
    bool present = true;
  };
  // Encodes with error feedback. Returns InvalidArgument where an element of g in a present segment
  // is not finite; then no segment's residual or momentum has changed. REQUIRES: as Encode.
  absl::StatusOr<size_t> EncodeFeedback(std::span<const FeedbackInput> inputs, const Draw& draw,
                                        MutableByteSpan out) const;

  // One segment's step of a delta. Weights and replica are float32[segment].
  struct DeltaInput {
    const float* weights = nullptr;
    float* replica = nullptr;
    bool present = true;
  };
  // Encodes the difference of the weights from the replica, and advances the replica
  // (memory/delta.h). Returns InvalidArgument where a weight of a present segment is not finite;
  // then no replica has changed. REQUIRES: as Encode; dtype() is kFloat32.
  absl::StatusOr<size_t> EncodeDelta(std::span<const DeltaInput> inputs, const Draw& draw,
                                     MutableByteSpan out) const;

  // Validates as Codec::Validate, and the table and the padding too. At least one segment must be
  // present.
  absl::Status Validate(ByteSpan in) const;

  // Returns OK where each present segment was drawn by its part of `draw`, whose keys its payload
  // begins with. InvalidArgument names the first segment that was not. REQUIRES: Validate(in) is
  // OK, the codec shares_draw.
  absl::Status CheckDraw(ByteSpan in, const Draw& draw) const;

  // A reader of the segments' payloads, in order. It reads each entry of the table once. REQUIRES:
  // Validate(in) was OK; where the codec bounds_itself, the bytes may have changed since. The codec
  // and the payload outlive the reader.
  class Segments {
   public:
    Segments(const SegmentedCodec& codec, ByteSpan in);
    // Returns the next segment's payload, or nothing where that segment is absent. REQUIRES: it is
    // called at most once for each segment.
    std::optional<ByteSpan> Next();

   private:
    const SegmentedCodec* codec_;
    ByteSpan in_;
    size_t i_ = 0;
    size_t begin_;  // where segment i's payload begins
  };

  // Returns whether segment i is present. REQUIRES: Validate(in) is OK.
  bool Present(ByteSpan in, size_t i) const;

  // Sets y to the sum of the decoded payloads, added in order (Codec::DecodeSum), segment by
  // segment, and to +0 where a segment is absent in all. REQUIRES: Validate of each is OK, y.n ==
  // num_elements().
  void DecodeSum(std::span<const ByteSpan> in, MutableView y) const;
  // DecodeAddTransformed and InverseTransform do the same in parts. Start from zeros, add the
  // payloads in order, any number at a time, and call InverseTransform at the end. REQUIRES: as
  // DecodeSum.
  void DecodeAddTransformed(std::span<const ByteSpan> in, MutableView y) const;
  void InverseTransform(MutableView y) const;
  // Writes the payload of scale * the sum, without decoding (Codec::AddEncoded). REQUIRES: the
  // codec is linear, there is at least one payload, Validate of each is OK, out.size() >=
  // MaxEncodedBytes().
  absl::StatusOr<size_t> AddEncoded(std::span<const ByteSpan> in, float scale,
                                    MutableByteSpan out) const;

 private:
  // Fills the table and writes the segments' payloads; encode(i, draw, rest of out) writes one.
  template <typename IsPresent, typename EncodeOne>
  absl::StatusOr<size_t> Fill(const Draw& draw, MutableByteSpan out, const IsPresent& present,
                              const EncodeOne& encode) const;

  const std::shared_ptr<const Codec> codec_;
  const DType dtype_;
  const std::vector<size_t> elements_;
  std::vector<size_t> offsets_;
  size_t total_ = 0;
  size_t max_bytes_ = 0;
};

}  // namespace bdn

#endif  // BANDONEON_COMPRESSORS_SEGMENTED_H_
