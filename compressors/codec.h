#ifndef BANDONEON_COMPRESSORS_CODEC_H_
#define BANDONEON_COMPRESSORS_CODEC_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/bytes.h"
#include "common/base/draw.h"
#include "common/base/dtype.h"
#include "compressors/encode_source.h"

namespace bdn {

// On the wire (FrameHeader::codec): never renumber. 0 is "no payload".
enum class CodecId : uint8_t {
  kNone = 1,
  kFp16 = 2,
  kBf16 = 3,
  kOneBit = 4,
  kTopK = 5,
  kRandomK = 6,
  kBlocks = 7,
  kDither = 8,
  kInt8 = 9,
  kInt4 = 10,
  kInt2 = 11,
  kSketch = 12,
  kExactSketch = 13,
  kSign = 14,
  kTwoBit = 15,
};

// A codec for a flat array. Stateless, const, thread-safe: the same input and draw give the same
// bytes on every instruction set, thread and machine, and decoding them gives the same bits.
//
// Inputs are float32, float16 or bfloat16 (converted inside the loop) and outputs are the same
// three; float64 in and out is for `none` alone. n may be 0. The mathematics is in float32.
// Nothing allocates once a thread has used a codec of this size before (scratch.h).
class Codec {
 public:
  virtual ~Codec() = default;

  virtual CodecId id() const = 0;
  // The spec that builds it, in canonical form: "onebit(block=256)".
  virtual std::string spec() const = 0;
  // Whether decode(encode(x)) == x for every finite float32 x. Then error feedback has nothing to
  // keep.
  virtual bool lossless() const { return false; }
  // Whether all nodes must draw alike (Draw with kSharedRank), so that what they chose to send
  // meets. Payloads then begin with the draw's keys, unless they are empty.
  virtual bool shares_draw() const { return false; }
  // Whether what was drawn is scaled up for what was not, so that doing it twice is wrong.
  virtual bool scales_draw() const { return false; }
  // Whether decoding stays within its arrays whatever the payload's bytes are, once one of so many was
  // valid: then they may change while they are decoded. All payloads are MaxEncodedBytes long then.
  virtual bool bounds_itself() const { return false; }
  // Whether payloads drawn alike add up without decoding: AddEncoded.
  virtual bool linear() const { return false; }
  // Whether an answer by the same codec, drawn alike, loses nothing of a sum of payloads. Sketches
  // add up, but do not promise this.
  virtual bool carries_sums() const { return lossless(); }
  virtual bool Supports(DType dtype) const {
    return dtype == DType::kFloat32 || dtype == DType::kFloat16 || dtype == DType::kBFloat16;
  }

  // No encoding of n elements of `dtype` is longer.
  virtual size_t MaxEncodedBytes(size_t n, DType dtype) const = 0;

  // Encodes the p of `source` into `out` and returns the bytes used. Where the source keeps a
  // residual, leaves p - decoded in it. InvalidArgument when an element that the codec reads is
  // NaN or infinite ("element 17 is nan"): then `out` is unspecified, and residual and momentum are
  // as they were.
  // REQUIRES: Supports(source.dtype()), out.size() >= MaxEncodedBytes(source.n(), source.dtype()).
  virtual absl::StatusOr<size_t> EncodeFrom(EncodeSource& source, const Draw& draw,
                                            MutableByteSpan out) const = 0;

  // p = scale * x. REQUIRES: scale finite.
  absl::StatusOr<size_t> Encode(ConstView x, float scale, const Draw& draw,
                                MutableByteSpan out) const {
    EncodeSource source(x, scale);
    return EncodeFrom(source, draw, out);
  }
  // p = scale * g + decay * residual, and the residual becomes p - decoded (memory/error_feedback.h
  // has the whole of it). The same bits as accumulating, encoding and subtracting one after the
  // other, fused.
  absl::StatusOr<size_t> EncodeFeedback(const Feedback& feedback, const Draw& draw,
                                        MutableByteSpan out) const {
    EncodeSource source(feedback);
    return EncodeFrom(source, draw, out);
  }

  // OK exactly when `in` is a payload that Encode could have written for n elements of `dtype` and
  // is safe to decode: sizes, counts, indices in range and rising, scales finite. Reads `in` only.
  // InvalidArgument says what is wrong. Costs at most one pass over the payload.
  virtual absl::Status Validate(ByteSpan in, size_t n, DType dtype) const = 0;

  // y[i] = scale * decoded[i], all of y written (zeros too). REQUIRES: Validate(in, y.n) is OK.
  virtual void Decode(ByteSpan in, float scale, MutableView y) const = 0;
  // y[i] += scale * decoded[i], in two roundings. float32 (float64 for `none` of float64).
  // REQUIRES: as Decode, and y.dtype is kFloat32 (or kFloat64).
  virtual void DecodeAdd(ByteSpan in, float scale, MutableView y) const = 0;

  // y[i] = ((0 + scale * decoded_0[i]) + scale * decoded_1[i]) + ..., the bits that DecodeAdd of
  // each in order onto zeros gives; dense codecs take one pass over y, a cache's worth at a time.
  // A codec that transforms (Transforms()) adds the transformed values instead, and transforms the
  // sum back once. REQUIRES: as DecodeAdd, for every payload.
  virtual void DecodeSum(std::span<const ByteSpan> in, float scale, MutableView y) const;

  // Codecs that quantize after a linear transform can add before they transform back.
  virtual bool Transforms() const { return false; }
  // DecodeAdd without transforming back. REQUIRES: as DecodeAdd.
  virtual void DecodeAddTransformed(ByteSpan in, float scale, MutableView y) const {
    DecodeAdd(in, scale, y);
  }
  // Transforms y back, in place.
  virtual void InverseTransform(MutableView /*y*/) const {}

  // Writes to `out` the payload whose decoding is scale * (the sum of what `in` decode to), added
  // in order from +0, and returns its size. The values of `in` are neither decoded nor spread out.
  // FailedPrecondition when the payloads were not drawn alike; InvalidArgument when a sum is not
  // finite. `out` is unspecified then. REQUIRES: linear(), at least one payload, each valid for n
  // elements of `dtype`, out.size() >= MaxEncodedBytes(n, dtype), `out` overlaps none of `in`.
  virtual absl::StatusOr<size_t> AddEncoded(std::span<const ByteSpan> in, float scale, size_t n,
                                            DType dtype, MutableByteSpan out) const;
};

}  // namespace bdn

#endif  // BANDONEON_COMPRESSORS_CODEC_H_
