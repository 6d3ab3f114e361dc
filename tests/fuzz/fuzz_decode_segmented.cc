// A group of one to eight segments of any codec: refused, or every segment decodes inside memory of
// exactly its size.

#include <algorithm>
#include <memory>
#include <optional>

#include "compressors/segmented.h"
#include "tests/fuzz/decoder_property.h"

namespace {

using bdn::fuzz::Check;

// A present segment of n elements.
void CheckSegment(const bdn::Codec& codec, bdn::ByteSpan payload, size_t n) {
  const auto decoded = std::make_unique<float[]>(n);
  const auto sum = std::make_unique<float[]>(n);
  codec.Decode(payload, 1.0f, {decoded.get(), bdn::DType::kFloat32, n});
  codec.DecodeAdd(payload, 1.0f, {sum.get(), bdn::DType::kFloat32, n});
  for (size_t j = 0; j < n; ++j) Check(decoded[j] == sum[j]);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  constexpr const char* kSpecs[] = {"none",
                                    "fp16",
                                    "onebit",
                                    "onebit(block=32)",
                                    "topk(ratio=0.01)",
                                    "topk(ratio=0.5)",
                                    "twobit(block=32)",
                                    "onebit(block=32,scale=bf16)"};
  bdn::fuzz::InputReader input(data, size);
  const uint8_t choice = input.Byte();
  std::vector<size_t> elements(1 + choice % 8);
  for (size_t& n : elements) n = input.Byte();
  const bdn::SegmentedCodec codec(bdn::fuzz::CodecOf(kSpecs[choice / 8 % std::size(kSpecs)]),
                                  elements, bdn::DType::kFloat32);
  const std::vector<uint8_t> rest = input.Rest();
  const auto exact = std::make_unique<uint8_t[]>(rest.size());
  std::copy(rest.begin(), rest.end(), exact.get());
  const auto in = std::as_bytes(std::span(exact.get(), rest.size()));
  if (!codec.Validate(in).ok()) return 0;
  bdn::SegmentedCodec::Segments segments(codec, in);
  for (size_t i = 0; i < codec.num_segments(); ++i) {
    const std::optional<bdn::ByteSpan> payload = segments.Next();
    Check(payload.has_value() == codec.Present(in, i));
    if (payload.has_value()) CheckSegment(codec.codec(), *payload, codec.segment_elements(i));
  }
  return 0;
}
