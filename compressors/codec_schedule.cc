#include "compressors/codec_schedule.h"

#include <charconv>

#include "common/base/spec_text.h"
#include "common/base/status.h"

namespace bdn {
namespace {

constexpr uint64_t kMostSteps = uint64_t{1} << 40;

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

// Reads a codec and, if it is there, "for" and a number of steps, up to ";" or the end. `part` is
// the text that was read, for errors.
absl::StatusOr<CodecSchedule::Stage> ReadStage(SpecReader& spec, std::string_view* part) {
  CodecSchedule::Stage stage;
  const size_t begin = spec.SkipSpaces();
  BDN_ASSIGN_OR_RETURN(stage.link, ReadLinkCodec(spec));
  *part = spec.PartSince(begin);
  const size_t after = spec.SkipSpaces();
  const bool ends = spec.Name() == "for";
  bool has_steps = false;
  if (ends) {
    has_steps = ParseSteps(spec.Name(), &stage.steps);
    *part = spec.PartSince(begin);
  } else {
    spec.GoBack(after);
  }
  const bool is_last = !spec.Next(';');
  if (is_last) BDN_RETURN_IF_ERROR(spec.ExpectEnd());
  // The checks come last, when all of the period was read, so that an error can show all of it.
  const auto bad = [&](const char* what) {
    return spec.Bad(*part, absl::StrFormat("'%s' must %s", std::string(*part), what));
  };
  if (is_last && ends) return bad("be the last stage without 'for', or others follow it");
  if (!is_last && !ends) return bad("say for how many steps, as in 'none for 100'");
  if (ends && !has_steps) return bad("be for a number of steps from 1 to 2^40");
  return stage;
}

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
  SpecReader spec("codec spec", text);
  CodecSchedule schedule;
  std::vector<std::string_view> parts;
  do {
    BDN_ASSIGN_OR_RETURN(CodecSchedule::Stage stage, ReadStage(spec, &parts.emplace_back()));
    schedule.stages.push_back(std::move(stage));
  } while (schedule.stages.back().steps != 0);
  bool has_memory = false;
  for (size_t i = 0; i < parts.size(); ++i) {
    const LinkCodec& link = schedule.stages[i].link;
    // Until the first codec that keeps a residual or a replica there is no state to lose, so plain
    // `none` may come there.
    const bool comes_before = IsPlainNone(link) && !has_memory;
    has_memory |= link.error_feedback || link.delta;
    if (comes_before || SameMemory(link, schedule.last())) continue;
    return spec.Bad(
        parts[i],
        absl::StrFormat("%s and %s differ in their memory, which stays: all stages have one, but "
                        "for none before them",
                        link.spec(), schedule.last().spec()));
  }
  return schedule;
}

}  // namespace bdn
