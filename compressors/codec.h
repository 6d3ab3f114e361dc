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

// The number of a codec on the wire (FrameHeader::codec). Never renumber one. 0 stands for "no
// payload".
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

// A codec of flat arrays. Stateless, const and thread-safe: the same input and draw give the same
// bytes on every instruction set, thread and machine, and decoding them gives the same bits.
//
// Inputs are float32, float16 or bfloat16, which are converted inside the loop, and outputs are of
// the same three types; float64 in and out is for `none` alone. n may be 0. The arithmetic is in
// float32, or in float64 where the arrays are. No call allocates once its thread has used a codec
// for an array of this size before (scratch.h).
class Codec {
 public:
  virtual ~Codec() = default;

  virtual CodecId id() const = 0;
  // Returns the spec that builds this codec, in canonical form: "onebit(block=256)".
  virtual std::string spec() const = 0;
  // Returns whether decode(encode(x)) == x for every finite float32 x. Then error feedback has
  // nothing to keep.
  virtual bool lossless() const { return false; }
  // Returns whether all nodes must draw alike (Draw with kSharedRank), so that they choose the same
  // elements to send. Payloads then begin with the draw's keys, unless they are empty.
  virtual bool shares_draw() const { return false; }
  // Returns whether drawn elements are scaled up to make up for those not drawn. Then scaling
  // twice, by the push and again by the reply, is wrong.
  virtual bool scales_draw() const { return false; }
  // Returns whether decoding stays within its arrays whatever the payload's bytes are, once a
  // payload of this size was valid. Then the bytes may change while they are decoded. All payloads
  // are MaxEncodedBytes long in this case.
  virtual bool bounds_itself() const { return false; }
  // Returns whether payloads that were drawn alike can be added without decoding them: AddEncoded.
  virtual bool linear() const { return false; }
  // Returns whether a reply by the same codec, drawn alike, loses nothing of a sum of payloads.
  // Sketches can be added, but do not promise this.
  virtual bool carries_sums() const { return lossless(); }
  virtual bool Supports(DType dtype) const {
    return dtype == DType::kFloat32 || dtype == DType::kFloat16 || dtype == DType::kBFloat16;
  }

  // Returns a bound: no encoding of n elements of `dtype` is longer.
  virtual size_t MaxEncodedBytes(size_t n, DType dtype) const = 0;

  // Encodes the p of `source` into `out` and returns the bytes used. Where the source keeps a
  // residual, leaves p - decoded in it. Returns InvalidArgument where an element that the codec
  // reads is NaN or infinite ("element 17 is nan"): then `out` is unspecified, and residual and
  // momentum are unchanged. REQUIRES: Supports(source.dtype()), out.size() >=
  // MaxEncodedBytes(source.n(), source.dtype()).
  virtual absl::StatusOr<size_t> EncodeFrom(EncodeSource& source, const Draw& draw,
                                            MutableByteSpan out) const = 0;

  // Encodes p = scale * x. REQUIRES: scale is finite.
  absl::StatusOr<size_t> Encode(ConstView x, float scale, const Draw& draw,
                                MutableByteSpan out) const {
    EncodeSource source(x, scale);
    return EncodeFrom(source, draw, out);
  }
  // Encodes p = scale * g + decay * residual, and replaces the residual by p - decoded
  // (memory/error_feedback.h has all of the formula). This gives the same bits as to accumulate,
  // encode and subtract one after the other, but in one go.
  absl::StatusOr<size_t> EncodeFeedback(const Feedback& feedback, const Draw& draw,
                                        MutableByteSpan out) const {
    EncodeSource source(feedback);
    return EncodeFrom(source, draw, out);
  }

  // Returns OK exactly when `in` is a payload that Encode could have written for n elements of
  // `dtype` and that is safe to decode: sizes, counts, indices in range and rising, scales finite.
  // Reads `in` only. InvalidArgument says what is wrong. Costs at most one pass over the payload.
  virtual absl::Status Validate(ByteSpan in, size_t n, DType dtype) const = 0;

  // Sets y[i] = scale * decoded[i]. All of y is written, zeros too. REQUIRES: Validate(in, y.n) is
  // OK.
  virtual void Decode(ByteSpan in, float scale, MutableView y) const = 0;
  // Does as Decode, and returns how many elements could only be guessed, because the payload does
  // not determine them.
  virtual size_t DecodeCounting(ByteSpan in, float scale, MutableView y) const {
    Decode(in, scale, y);
    return 0;
  }
  // Returns whether DecodeCounting may return more than 0.
  virtual bool guesses() const { return false; }
  // Adds: y[i] += scale * decoded[i], in two roundings, of float32 (of float64 for `none` of
  // float64). REQUIRES: as Decode, and y.dtype is kFloat32 (or kFloat64).
  virtual void DecodeAdd(ByteSpan in, float scale, MutableView y) const = 0;

  // Sets y[i] = ((0 + scale * decoded_0[i]) + scale * decoded_1[i]) + ..., with the bits that
  // DecodeAdd of each payload in order onto zeros gives. Dense codecs take one pass over y, one
  // tile of it after another. A codec that transforms (Transforms()) adds the transformed values
  // instead, and transforms the sum back once. REQUIRES: as DecodeAdd, for every payload.
  virtual void DecodeSum(std::span<const ByteSpan> in, float scale, MutableView y) const;

  // Returns whether the codec quantizes after a linear transform, so that values can be added
  // before they are transformed back.
  virtual bool Transforms() const { return false; }
  // Does as DecodeAdd, but does not transform back. REQUIRES: as DecodeAdd.
  virtual void DecodeAddTransformed(ByteSpan in, float scale, MutableView y) const {
    DecodeAdd(in, scale, y);
  }
  // Transforms y back, in place.
  virtual void InverseTransform(MutableView /*y*/) const {}

  // Writes to `out` the payload whose decoding is scale * (the sum of the decoded payloads `in`),
  // added in order from +0, and returns its size. The values of `in` are neither decoded nor spread
  // out. Returns FailedPrecondition where the payloads were not drawn alike, and InvalidArgument
  // where a sum is not finite; `out` is unspecified then. REQUIRES: linear(), at least one payload,
  // each valid for n elements of `dtype`, out.size() >= MaxEncodedBytes(n, dtype), `out` overlaps
  // none of `in`.
  virtual absl::StatusOr<size_t> AddEncoded(std::span<const ByteSpan> in, float scale, size_t n,
                                            DType dtype, MutableByteSpan out) const;
};

}  // namespace bdn

#endif  // BANDONEON_COMPRESSORS_CODEC_H_
