// Any text is a spec or is refused with a caret; a spec's canonical form parses to itself. The same
// of schedules.

#include <string>

#include "compressors/codec_schedule.h"
#include "compressors/codec_spec.h"
#include "tests/fuzz/decoder_property.h"

static void CheckHasCaret(const absl::Status& status) {
  bdn::fuzz::Check(status.message().find('^') != std::string_view::npos);
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(data, data + size);
  const auto link = bdn::ParseCodecSpec(text);
  if (link.ok()) {
    const auto again = bdn::ParseCodecSpec(link->spec());
    bdn::fuzz::Check(again.ok() && again->spec() == link->spec());
    bdn::fuzz::Check(link->codec->MaxEncodedBytes(1000, bdn::DType::kFloat32) > 0);
  } else {
    CheckHasCaret(link.status());
  }
  const auto schedule = bdn::ParseCodecSchedule(text);
  if (schedule.ok()) {
    const auto again = bdn::ParseCodecSchedule(schedule->spec());
    bdn::fuzz::Check(again.ok() && again->spec() == schedule->spec());
  } else {
    CheckHasCaret(schedule.status());
  }
  bdn::fuzz::Check(schedule.ok() || !link.ok() || text.find(';') != std::string::npos);
  return 0;
}
