// The worked example of proto/wire_format.md, byte for byte.

#include <vector>

#include "common/wire/frame.h"
#include "compressors/codec_spec.h"
#include "gmock/gmock.h"
#include "tests/wire/document_block.h"
#include "tests/wire/wire_bytes.h"

namespace bdn {
namespace {

TEST(WireDocumentTest, ItsExampleIsTheGoldenPush) {
  EXPECT_EQ(ReadDocumentBlock("hex"), ReadGoldenFrames().at("push"));
}

TEST(WireDocumentTest, ItsExampleIsWhatOneBitSends) {
  const std::vector<float> x = {1, -2, 3, -4, 5, -6, 7, -8, 9};
  const auto onebit = ParseCodecSpec("onebit")->codec;
  Buffer payload = Buffer::Allocate(onebit->MaxEncodedBytes(x.size(), DType::kFloat32));
  const size_t used =
      onebit->Encode({x.data(), DType::kFloat32, x.size()}, 1.0f, Draw(), payload.mutable_span())
          .value();
  FrameHeader header;
  header.type = FrameType::kPush;
  header.codec = static_cast<uint8_t>(onebit->id());
  header.sender = 3;
  header.key = Key::Of(7, 2);
  header.step = 12;
  header.num_elements = x.size();
  header.epoch = 1;
  header.catalogue_version = 4;
  EXPECT_EQ(FrameBytes(MakeFrame(header, payload.Prefix(used))), ReadDocumentBlock("hex"));
}

}  // namespace
}  // namespace bdn
