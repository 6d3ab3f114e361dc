// Any text is a spec or is refused with a caret; a spec's canonical form parses to itself.

#include <string>

#include "compressors/codec_table.h"
#include "tests/fuzz/decoder_property.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(data, data + size);
  const auto link = bdn::ParseCodecSpec(text);
  if (!link.ok()) {
    bdn::fuzz::Check(std::string(link.status().message()).find('^') != std::string::npos);
    return 0;
  }
  const auto again = bdn::ParseCodecSpec(link->spec());
  bdn::fuzz::Check(again.ok() && again->spec() == link->spec());
  bdn::fuzz::Check(link->codec->MaxEncodedBytes(1000, bdn::DType::kFloat32) > 0);
  return 0;
}
