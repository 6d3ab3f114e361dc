#include "compressors/sign.h"

#include "common/base/endian.h"
#include "common/base/status.h"
#include "compressors/payload.h"
#include "kernels/float_kernels.h"
#include "kernels/onebit_kernels.h"

namespace bdn {
namespace {

constexpr size_t kWordElements = 32;
constexpr size_t kWordBytes = 4;
constexpr size_t kHeaderBytes = 4;

size_t NumWords(size_t n) { return DivideUp(n, kWordElements); }

size_t PayloadBytes(size_t n, bool zeros) {
  return n == 0 ? 0 : kHeaderBytes + (zeros ? 2 : 1) * NumWords(n) * kWordBytes;
}

// Return the offsets at which the two bitmaps of a payload have the bits of element `at`, a
// multiple of 32.
size_t NegativeOffset(size_t at) { return kHeaderBytes + at / kWordElements * kWordBytes; }
size_t ZeroOffset(size_t n, size_t at) { return NegativeOffset(at) + NumWords(n) * kWordBytes; }

// Returns whether the payload has a bitmap of zeros. REQUIRES: n > 0.
bool HasZeros(ByteSpan in) { return LoadLittle<uint32_t>(in) == 1; }

// Decodes elements [at, at + count) of n.
void Unpack(ByteSpan in, size_t n, size_t at, size_t count, float scale, float* y) {
  const std::byte* const negative = in.data() + NegativeOffset(at);
  if (HasZeros(in)) {
    UnpackSignsAndZeros(negative, in.data() + ZeroOffset(n, at), count, scale, y);
  } else {
    // Without zeros this is onebit, with the scale as the magnitude of all elements.
    UnpackSigns(negative, count, {.values = &scale, .block = count}, 1.0f, y);
  }
}

void UnpackAndAdd(ByteSpan in, size_t n, size_t at, size_t count, float scale, float* y) {
  const std::byte* const negative = in.data() + NegativeOffset(at);
  if (HasZeros(in)) {
    UnpackSignsAndZerosAndAdd(negative, in.data() + ZeroOffset(n, at), count, scale, y);
  } else {
    UnpackSignsAndAdd(negative, count, {.values = &scale, .block = count}, 1.0f, y);
  }
}

class SignCodec final : public Codec {
 public:
  CodecId id() const override { return CodecId::kSign; }
  std::string spec() const override { return "sign"; }

  size_t MaxEncodedBytes(size_t n, DType /*dtype*/) const override { return PayloadBytes(n, true); }

  absl::StatusOr<size_t> EncodeFrom(EncodeSource& source, const Draw& /*draw*/,
                                    MutableByteSpan out) const override {
    const size_t n = source.n();
    if (n == 0) return 0;
    BDN_ASSIGN_OR_RETURN(const bool zeros,
                         source.keeps_residual() ? PackTaken(source, out) : Pack(source, out));
    StoreLittle(out, 0, uint32_t{zeros});
    return PayloadBytes(n, zeros);
  }

  absl::Status Validate(ByteSpan in, size_t n, DType dtype) const override {
    BDN_RETURN_IF_ERROR(CheckSupports(*this, dtype));
    // The first word decides the size. Any word but 1 stands for no zeros here, and is refused
    // below unless it is 0.
    const bool zeros = in.size() >= kHeaderBytes && HasZeros(in);
    BDN_RETURN_IF_ERROR(CheckPayloadSize(*this, in.size(), PayloadBytes(n, zeros), n));
    if (n == 0) return absl::OkStatus();
    if (const auto flag = LoadLittle<uint32_t>(in); flag > 1) {
      return InvalidArgument("%s payload begins with %d, expected 0 or 1", spec(), flag);
    }
    BDN_RETURN_IF_ERROR(CheckPast(in, NegativeOffset(0), n));
    return zeros ? CheckZeros(in, n) : absl::OkStatus();
  }

  void Decode(ByteSpan in, float scale, MutableView y) const override {
    if (y.n == 0) return;
    if (y.dtype == DType::kFloat32) return Unpack(in, y.n, 0, y.n, scale, y.f32());
    float tile[kTile];
    ForEachTile(0, y.n, [&](size_t at, size_t count) {
      Unpack(in, y.n, at, count, scale, tile);
      ConvertScaled(ConstView{tile, DType::kFloat32, count}, 1.0f, y.Sub(at, count));
    });
  }

  void DecodeAdd(ByteSpan in, float scale, MutableView y) const override {
    if (y.n > 0) UnpackAndAdd(in, y.n, 0, y.n, scale, y.f32());
  }

  void DecodeSum(std::span<const ByteSpan> in, float scale, MutableView y) const override {
    SumByTiles(in, y, [&](ByteSpan payload, size_t at, MutableView tile) {
      UnpackAndAdd(payload, y.n, at, tile.n, scale, tile.f32());
    });
  }

 private:
  // Writes both bitmaps of `out`, since only the end tells whether there are zeros, and returns
  // whether their bitmap is needed.
  static absl::StatusOr<bool> Pack(EncodeSource& source, MutableByteSpan out) {
    bool zeros = false;
    bool finite = true;
    ForEachTile(0, source.n(), [&](size_t at, size_t count) {
      const PackedSigns packed =
          PackSignsAndZeros(source.Peek(at, count), count, out.data() + NegativeOffset(at),
                            out.data() + ZeroOffset(source.n(), at));
      zeros |= packed.has_zeros;
      finite &= packed.finite;
    });
    if (!finite) return source.CheckFinite();
    return zeros;
  }

  // Does the same, and leaves the residual. It goes backward, since the check left the end of the
  // array in a cache.
  static absl::StatusOr<bool> PackTaken(EncodeSource& source, MutableByteSpan out) {
    BDN_RETURN_IF_ERROR(source.CheckFinite());
    bool zeros = false;
    ForEachTileBackward(0, source.n(), [&](size_t at, size_t count) {
      zeros |= PackSignsAndZerosAndSubtract(source.Take(at, count), count,
                                            out.data() + NegativeOffset(at),
                                            out.data() + ZeroOffset(source.n(), at))
                   .has_zeros;
    });
    return zeros;
  }

  // Returns InvalidArgument where a bitmap has bits past n.
  absl::Status CheckPast(ByteSpan in, size_t bitmap, size_t n) const {
    if (n % kWordElements == 0) return absl::OkStatus();
    const auto last = LoadLittle<uint32_t>(in, bitmap + (NumWords(n) - 1) * kWordBytes);
    if (last >> (n % kWordElements) == 0) return absl::OkStatus();
    return InvalidArgument("%s payload has bits past its %d elements", spec(), n);
  }

  // Checks that the bitmap of zeros is needed, and that no element is both negative and zero, which
  // the kernels require.
  absl::Status CheckZeros(ByteSpan in, size_t n) const {
    BDN_RETURN_IF_ERROR(CheckPast(in, ZeroOffset(n, 0), n));
    uint32_t any = 0;
    uint32_t both = 0;
    for (size_t at = 0; at < n; at += kWordElements) {
      const auto zero = LoadLittle<uint32_t>(in, ZeroOffset(n, at));
      any |= zero;
      both |= zero & LoadLittle<uint32_t>(in, NegativeOffset(at));
    }
    if (any == 0) return InvalidArgument("%s payload has a bitmap of zeros, and no zero", spec());
    if (both == 0) return absl::OkStatus();
    return InvalidArgument("%s payload has an element both negative and zero", spec());
  }
};

}  // namespace

std::shared_ptr<const Codec> MakeSign() { return std::make_shared<SignCodec>(); }

}  // namespace bdn
