#include "tests/fuzz/decoder_property.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <memory>

#include "compressors/codec_spec.h"

namespace bdn::fuzz {
namespace {

MutableView ViewOf(std::unique_ptr<std::byte[]>& array, DType dtype, size_t n) {
  return {array.get(), dtype, n};
}

std::unique_ptr<std::byte[]> MakeArray(DType dtype, size_t n) {
  return std::make_unique<std::byte[]>(n * DTypeSize(dtype));
}

void CheckFloat32(const Codec& codec, ByteSpan in, size_t n) {
  auto decoded = MakeArray(DType::kFloat32, n);
  auto sum = MakeArray(DType::kFloat32, n);
  const MutableView y = ViewOf(decoded, DType::kFloat32, n);
  const MutableView total = ViewOf(sum, DType::kFloat32, n);
  for (size_t i = 0; i < n; ++i) total.f32()[i] = 1.0f;
  codec.Decode(in, 1.0f, y);
  codec.DecodeAdd(in, 1.0f, total);
  for (size_t i = 0; i < n; ++i) {
    Check(std::isfinite(y.f32()[i]));
    Check(total.f32()[i] == 1.0f + y.f32()[i]);
  }
  std::vector<std::byte> out(codec.MaxEncodedBytes(n, DType::kFloat32));
  const auto used = codec.Encode(y, 1.0f, Draw(), out);
  Check(used.ok() && codec.Validate(ByteSpan(out).first(*used), n, DType::kFloat32).ok());
}

void CheckFloat64(const Codec& codec, ByteSpan in, size_t n) {
  auto decoded = MakeArray(DType::kFloat64, n);
  auto sum = MakeArray(DType::kFloat64, n);
  codec.Decode(in, 1.0f, ViewOf(decoded, DType::kFloat64, n));
  codec.DecodeAdd(in, 1.0f, ViewOf(sum, DType::kFloat64, n));
  const auto* values = reinterpret_cast<const double*>(decoded.get());
  const auto* sums = reinterpret_cast<const double*>(sum.get());
  for (size_t i = 0; i < n; ++i) Check(std::isfinite(values[i]) && values[i] == sums[i]);
}

// A good payload with some of its bytes changed: three bytes of input each, where and by what.
std::vector<uint8_t> DamagedPayload(const Codec& codec, size_t n, DType dtype, InputReader* input) {
  auto x = MakeArray(dtype, n);  // zeros, but for a few
  if (codec.Supports(dtype) && n > 0) x[input->Byte() % n] = std::byte{1};
  std::vector<uint8_t> payload(codec.MaxEncodedBytes(n, dtype));
  if (codec.Supports(dtype)) {
    Check(
        codec.Encode(ViewOf(x, dtype, n), 1.0f, Draw(), std::as_writable_bytes(std::span(payload)))
            .ok());
  }
  while (!input->empty() && !payload.empty()) {
    const size_t low = input->Byte();
    const size_t at = low + 256 * size_t{input->Byte()};
    payload[at % payload.size()] ^= input->Byte();
  }
  return payload;
}

}  // namespace

void Check(bool holds) {
  if (!holds) std::abort();
}

uint8_t InputReader::Byte() {
  if (left_.empty()) return 0;
  const uint8_t byte = left_.front();
  left_ = left_.subspan(1);
  return byte;
}

size_t InputReader::NumElements() {
  const size_t low = Byte();
  const size_t high = Byte();
  return low + 256 * (high % 4) + (high == 255 && low == 255 ? 65536 : 0);
}

std::shared_ptr<const Codec> CodecOf(const std::string& spec) {
  return ParseCodecSpec(spec)->codec;
}

void CheckDecoder(const Codec& codec, const std::vector<uint8_t>& payload, size_t n, DType dtype) {
  // A copy of exactly its size, so that reading past the end is seen.
  const auto exact = std::make_unique<std::byte[]>(payload.size());
  std::copy_n(reinterpret_cast<const std::byte*>(payload.data()), payload.size(), exact.get());
  const ByteSpan in(exact.get(), payload.size());
  if (!codec.Validate(in, n, dtype).ok()) return;
  if (dtype == DType::kFloat64) return CheckFloat64(codec, in, n);
  CheckFloat32(codec, in, n);
  for (const DType narrow : {DType::kFloat16, DType::kBFloat16}) {
    auto y = MakeArray(narrow, n);
    codec.Decode(in, 1.0f, ViewOf(y, narrow, n));
  }
}

int DecodeOneInput(std::span<const char* const> specs, const uint8_t* data, size_t size) {
  constexpr DType kTypes[] = {DType::kFloat32, DType::kFloat16, DType::kBFloat16, DType::kFloat64};
  InputReader input(data, size);
  const uint8_t choice = input.Byte();
  const DType dtype = kTypes[choice % 4];
  const auto codec = CodecOf(specs[choice / 12 % specs.size()]);
  const size_t n = input.NumElements();
  std::vector<uint8_t> payload;
  switch (choice / 4 % 3) {
    case 0:
      payload = input.Rest();
      break;
    case 1:
      payload = input.Rest();
      payload.resize(codec->MaxEncodedBytes(n, dtype));
      break;
    default:
      payload = DamagedPayload(*codec, n, dtype, &input);
  }
  CheckDecoder(*codec, payload, n, dtype);
  return 0;
}

}  // namespace bdn::fuzz
