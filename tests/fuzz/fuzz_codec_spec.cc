// Any text is a spec or is refused with a caret; a spec's canonical form parses to itself. The same
// of schedules, which are refused in words.

#include <string>

#include "compressors/codec_schedule.h"
#include "tests/fuzz/decoder_property.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(data, data + size);
  const auto link = bdn::ParseCodecSpec(text);
  if (link.ok()) {
    const auto again = bdn::ParseCodecSpec(link->spec());
    bdn::fuzz::Check(again.ok() && again->spec() == link->spec());
    bdn::fuzz::Check(link->codec->MaxEncodedBytes(1000, bdn::DType::kFloat32) > 0);
  } else {
    bdn::fuzz::Check(std::string(link.status().message()).find('^') != std::string::npos);
  }
  const auto schedule = bdn::ParseCodecSchedule(text);
  if (schedule.ok()) {
    const auto again = bdn::ParseCodecSchedule(schedule->spec());
    bdn::fuzz::Check(again.ok() && again->spec() == schedule->spec());
  }
  bdn::fuzz::Check(schedule.ok() || !link.ok() || text.find(';') != std::string::npos);
  return 0;
}
