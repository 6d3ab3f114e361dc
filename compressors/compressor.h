#ifndef BANDONEON_COMPRESSORS_COMPRESSOR_H_
#define BANDONEON_COMPRESSORS_COMPRESSOR_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/bytes.h"
#include "common/base/draw.h"
#include "common/base/dtype.h"

namespace bdn {

// On the wire (FrameHeader::codec): never renumber. 0 is "no payload".
enum class CodecId : uint8_t {
  kNone = 1,
  kFp16 = 2,
  kBf16 = 3,
  kOneBit = 4,
  kTopK = 5,
};

// A codec for a flat array. Stateless, const, thread-safe: the same input and draw give the same
// bytes on every instruction set, thread and machine, and decoding them gives the same bits.
//
// Inputs are float32, float16 or bfloat16 (converted inside the loop) and outputs are the same
// three; float64 in and out is for `none` alone. n may be 0. The mathematics is in float32.
class Compressor {
 public:
  virtual ~Compressor() = default;

  virtual CodecId id() const = 0;
  // The spec that builds it, in canonical form: "onebit(block=256)".
  virtual std::string spec() const = 0;
  // Whether decode(encode(x)) == x for every finite float32 x. Then error feedback has nothing to
  // keep.
  virtual bool lossless() const { return false; }
  virtual bool Supports(DType dtype) const {
    return dtype == DType::kFloat32 || dtype == DType::kFloat16 || dtype == DType::kBFloat16;
  }

  // No encoding of n elements of `dtype` is longer.
  virtual size_t MaxEncodedBytes(size_t n, DType dtype) const = 0;

  // Encodes scale * x[i] into `out` and returns the bytes used. InvalidArgument, before anything is
  // written, when a scaled element is NaN or infinite ("element 17 is nan").
  // REQUIRES: Supports(x.dtype), out.size() >= MaxEncodedBytes(x.n, x.dtype), scale finite.
  virtual absl::StatusOr<size_t> Encode(ConstView x, float scale, const Draw& draw,
                                        MutableByteSpan out) const = 0;

  // Encodes residual[i] and leaves in it what the payload misses: residual[i] - decoded[i], fused
  // where the codec can. float32[n]. The caller has put p = scale * x + rho * e there (memory/).
  // REQUIRES: residual is finite, out.size() >= MaxEncodedBytes(n, kFloat32).
  virtual size_t EncodeResidual(float* residual, size_t n, const Draw& draw,
                                MutableByteSpan out) const = 0;

  // OK exactly when `in` is a payload that Encode could have written for n elements of `dtype` and
  // is safe to decode: sizes, counts, indices in range and rising, scales finite. Reads `in` only.
  // InvalidArgument says what is wrong. Costs at most one pass over the payload.
  virtual absl::Status Validate(ByteSpan in, size_t n, DType dtype) const = 0;

  // y[i] = scale * decoded[i], all of y written (zeros too). REQUIRES: Validate(in, y.n) is OK.
  virtual void Decode(ByteSpan in, float scale, MutableView y) const = 0;
  // y[i] += scale * decoded[i], in two roundings. float32 (float64 for `none` of float64).
  // REQUIRES: as Decode, and y.dtype is kFloat32 (or kFloat64).
  virtual void DecodeAdd(ByteSpan in, float scale, MutableView y) const = 0;
};

}  // namespace bdn

#endif  // BANDONEON_COMPRESSORS_COMPRESSOR_H_
