#ifndef BANDONEON_COMPRESSORS_DENSE_FLOAT_H_
#define BANDONEON_COMPRESSORS_DENSE_FLOAT_H_

#include <string>

#include "compressors/codec.h"

namespace bdn {

// The common class of `none`, `fp16` and `bf16`, which send every element, in order, as one
// floating type. Internal to compressors/.
//
// Passes over memory: Encode reads x once and writes the payload; EncodeFeedback reads g once more,
// before it changes the residual; Decode, DecodeAdd and Validate read the payload once; AddEncoded
// reads each payload once and writes one.
class DenseFloatCodec final : public Codec {
 public:
  // `wire` is the type on the wire. float64 input, which `none` alone takes, stays float64.
  DenseFloatCodec(CodecId id, const char* name, DType wire, bool takes_float64)
      : id_(id), name_(name), wire_(wire), takes_float64_(takes_float64) {}

  CodecId id() const override { return id_; }
  std::string spec() const override { return name_; }
  bool bounds_itself() const override { return true; }
  bool lossless() const override { return wire_ == DType::kFloat32; }
  // Payloads of `none` are the elements, so they can be added. Those of fp16 and bf16 would round
  // the sums again.
  bool linear() const override { return wire_ == DType::kFloat32; }
  bool Supports(DType dtype) const override {
    return Codec::Supports(dtype) || (takes_float64_ && dtype == DType::kFloat64);
  }
  size_t MaxEncodedBytes(size_t n, DType dtype) const override;
  absl::StatusOr<size_t> EncodeFrom(EncodeSource& source, const Draw& draw,
                                    MutableByteSpan out) const override;
  absl::Status Validate(ByteSpan in, size_t n, DType dtype) const override;
  void Decode(ByteSpan in, float scale, MutableView y) const override;
  void DecodeAdd(ByteSpan in, float scale, MutableView y) const override;
  void DecodeSum(std::span<const ByteSpan> in, float scale, MutableView y) const override;
  absl::StatusOr<size_t> AddEncoded(std::span<const ByteSpan> in, float scale, size_t n,
                                    DType dtype, MutableByteSpan out) const override;

 private:
  DType WireType(DType dtype) const { return dtype == DType::kFloat64 ? dtype : wire_; }

  const CodecId id_;
  const char* const name_;
  const DType wire_;
  const bool takes_float64_;
};

}  // namespace bdn

#endif  // BANDONEON_COMPRESSORS_DENSE_FLOAT_H_
