#include "compressors/codec_schedule.h"

#include <charconv>

#include "common/base/status.h"

namespace bdn {
namespace {

constexpr uint64_t kMostSteps = uint64_t{1} << 40;
constexpr std::string_view kFor = " for ";

std::string_view Trimmed(std::string_view text) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  return text;
}

bool ParseSteps(std::string_view text, uint64_t* steps) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *steps);
  return error == std::errc() && end == text.data() + text.size() && *steps >= 1 &&
         *steps <= kMostSteps;
}

bool SameMemory(const LinkCodec& a, const LinkCodec& b) {
  return a.error_feedback == b.error_feedback && a.delta == b.delta && a.decay == b.decay &&
         a.learning_rate_correction == b.learning_rate_correction;
}

bool IsPlainNone(const LinkCodec& link) { return link.spec() == "none"; }

}  // namespace

std::string CodecSchedule::spec() const {
  std::string text;
  for (const Stage& stage : stages) {
    text += stage.link.spec();
    if (stage.steps != 0) absl::StrAppendFormat(&text, " for %d; ", stage.steps);
  }
  return text;
}

absl::StatusOr<CodecSchedule> ParseCodecSchedule(std::string_view text) {
  CodecSchedule schedule;
  for (bool is_last = false; !is_last;) {
    const size_t end = text.find(';');
    is_last = end == std::string_view::npos;
    const std::string_view whole = Trimmed(text.substr(0, end));
    if (!is_last) text.remove_prefix(end + 1);

    const size_t at = whole.rfind(kFor);
    const bool ends = at != std::string_view::npos;
    CodecSchedule::Stage stage;
    BDN_ASSIGN_OR_RETURN(stage.link, ParseCodecSpec(whole.substr(0, at)));
    const std::string shown(whole);
    if (ends == is_last) {
      return InvalidArgument("codec schedule: '%s' must %s", shown,
                             ends ? "be the last stage without 'for', or others follow it"
                                  : "say for how many steps, as in 'none for 100'");
    }
    if (ends && !ParseSteps(Trimmed(whole.substr(at + kFor.size())), &stage.steps)) {
      return InvalidArgument("codec schedule: '%s' must be for a number of steps from 1 to 2^40",
                             shown);
    }
    schedule.stages.push_back(std::move(stage));
  }
  bool has_memory = false;
  for (const CodecSchedule::Stage& stage : schedule.stages) {
    const bool comes_before = IsPlainNone(stage.link) && !has_memory;
    has_memory |= stage.link.error_feedback || stage.link.delta;
    if (comes_before || SameMemory(stage.link, schedule.last())) continue;
    return InvalidArgument(
        "codec schedule: %s and %s differ in their memory, which stays: all stages have one, but "
        "for none before them",
        stage.link.spec(), schedule.last().spec());
  }
  return schedule;
}

}  // namespace bdn
