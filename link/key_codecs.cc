#include "link/key_codecs.h"

#include <algorithm>
#include <utility>

#include "common/base/status.h"
#include "compressors/codec_schedule.h"

namespace bdn {
namespace {

// One direction of a link: its schedule, the codecs of all periods but the last, and the last
// codec.
struct Direction {
  CodecSchedule schedule;
  std::vector<CodecStage> stages;
  std::unique_ptr<const SegmentedCodec> last;
};

absl::StatusOr<std::unique_ptr<const SegmentedCodec>> MakeSegmented(
    const LinkCodec& link, const KeyCodecsOptions& options) {
  if (!link.codec->Supports(options.dtype)) {
    return InvalidArgument("codec %s does not take %s; use none", link.spec(),
                           DTypeName(options.dtype));
  }
  return std::make_unique<const SegmentedCodec>(link.codec, options.segment_elements,
                                                options.dtype);
}

// Makes one direction. The warm-up comes first, whatever the schedule says of its steps.
absl::StatusOr<Direction> MakeDirection(const std::string& spec, const KeyCodecsOptions& options) {
  Direction made;
  BDN_ASSIGN_OR_RETURN(made.schedule, ParseCodecSchedule(spec));
  if (options.warmup_steps > 0) {
    BDN_ASSIGN_OR_RETURN(const LinkCodec none, ParseCodecSpec("none"));
    BDN_ASSIGN_OR_RETURN(auto dense, MakeSegmented(none, options));
    made.stages.push_back({options.warmup_steps, std::move(dense)});
  }
  uint64_t last_step = 0;
  for (const CodecSchedule::Stage& stage : made.schedule.stages) {
    BDN_ASSIGN_OR_RETURN(auto codec, MakeSegmented(stage.link, options));
    last_step += stage.steps;
    // A period that the warm-up covers altogether never comes into use, and is left out.
    if (stage.steps == 0) {
      made.last = std::move(codec);
    } else if (last_step > options.warmup_steps) {
      made.stages.push_back({last_step, std::move(codec)});
    }
  }
  return made;
}

// Returns whether a reply would scale up once more what its pushes scaled up, where both drew the
// same elements. The last codecs of both ways are excepted if payloads add up encoded: then neither
// scales.
bool ScalesTwice(const CodecSchedule& push, const CodecSchedule& pull, bool last_add_up) {
  for (const CodecSchedule::Stage& up : push.stages) {
    for (const CodecSchedule::Stage& down : pull.stages) {
      const bool add_up = last_add_up && up.steps == 0 && down.steps == 0;
      if (up.link.codec->shares_draw() && down.link.codec->scales_draw() && !add_up) return true;
    }
  }
  return false;
}

LinkFeedback FeedbackOf(const LinkCodec& link) {
  return {.on = link.error_feedback,
          .decay = static_cast<float>(link.decay),
          .learning_rate_correction = link.learning_rate_correction};
}

// Checks that the specs go with the update rule: delta(...) is for pulling weights that servers
// hold, ef(...) for gradients.
absl::Status CheckMemories(const LinkCodec& push, const LinkCodec& pull,
                           const KeyCodecsOptions& options) {
  if (push.delta || (pull.delta && !options.holds_weights)) {
    return InvalidArgument("%s is for pulling weights that servers hold; gradients take ef(...)",
                           (push.delta ? push : pull).spec());
  }
  if (!options.holds_weights) return absl::OkStatus();
  if (options.dtype != DType::kFloat32) {
    return InvalidArgument("servers hold weights in float32, not %s", DTypeName(options.dtype));
  }
  if (pull.error_feedback) {
    return InvalidArgument(
        "%s is for pulling gradients; weights take delta(...), which sends again what was left out",
        pull.spec());
  }
  if (pull.codec->id() == CodecId::kSign && (pull.delta || !options.steps_by_signs)) {
    return InvalidArgument("only the rule sign_momentum can be pulled as %s", pull.spec());
  }
  return absl::OkStatus();
}

ReplyKind ReplyOf(const LinkCodec& pull, const KeyCodecsOptions& options) {
  if (!options.holds_weights) return ReplyKind::kAggregate;
  if (pull.delta) return ReplyKind::kDelta;
  return pull.codec->id() == CodecId::kSign ? ReplyKind::kSigns : ReplyKind::kWeights;
}

}  // namespace

size_t KeyCodecs::MaxEncodedBytes() const {
  size_t most = std::max(push->MaxEncodedBytes(), pull->MaxEncodedBytes());
  for (const auto* stages : {&push_stages, &pull_stages}) {
    for (const CodecStage& stage : *stages) most = std::max(most, stage.codec->MaxEncodedBytes());
  }
  if (uncompressed != nullptr) most = std::max(most, uncompressed->codec.MaxEncodedBytes());
  return most;
}

void KeyCodecs::GoUncompressed(uint64_t first_step) const {
  if (uncompressed == nullptr) return;
  uint64_t known = uncompressed->first_step.load();
  // The earliest step wins: replies to several steps may each have decided it.
  while (first_step < known && !uncompressed->first_step.compare_exchange_weak(known, first_step)) {
  }
}

absl::StatusOr<KeyCodecs> MakeKeyCodecs(const KeyCodecsOptions& options) {
  KeyCodecs codecs;
  codecs.warmup_steps = options.warmup_steps;
  BDN_ASSIGN_OR_RETURN(Direction push, MakeDirection(options.push_spec, options));
  BDN_ASSIGN_OR_RETURN(Direction pull, MakeDirection(options.pull_spec, options));
  const LinkCodec& push_link = push.schedule.last();
  const LinkCodec& pull_link = pull.schedule.last();
  BDN_RETURN_IF_ERROR(CheckMemories(push_link, pull_link, options));
  if (options.holds_weights && pull.schedule.stages.size() > 1) {
    return InvalidArgument(
        "pull '%s' is a schedule, and weights are pulled by one codec; use warmup for dense steps",
        pull.schedule.spec());
  }
  codecs.push_feedback = FeedbackOf(push_link);
  codecs.pull_feedback = FeedbackOf(pull_link);
  codecs.reply = ReplyOf(pull_link, options);
  const bool aggregate = codecs.reply == ReplyKind::kAggregate;
  // Encoded payloads are added up only where both ways use one linear codec, and where the replies
  // keep no residual, which would be added to the sum first.
  codecs.adds_encoded = aggregate && push_link.codec->linear() &&
                        push_link.codec->spec() == pull_link.codec->spec() &&
                        !codecs.pull_feedback.on;
  if (aggregate && ScalesTwice(push.schedule, pull.schedule, codecs.adds_encoded)) {
    return InvalidArgument(
        "pull codec %s after push codec %s would scale twice what both drew alike; leave unbiased "
        "out of the pull",
        options.pull_spec, options.push_spec);
  }
  codecs.push = std::move(push.last);
  codecs.pull = std::move(pull.last);
  // Only a link that keeps a residual or a replica can grow without bound, and only a codec that
  // guesses can be wrong, so only such keys may go uncompressed later.
  if (codecs.push_feedback.on || codecs.pull_has_memory() || codecs.reply_guesses()) {
    BDN_ASSIGN_OR_RETURN(const LinkCodec none, ParseCodecSpec("none"));
    codecs.uncompressed = std::make_unique<KeyCodecs::Uncompressed>(
        SegmentedCodec(none.codec, options.segment_elements, options.dtype));
  }
  codecs.push_stages = std::move(push.stages);
  codecs.pull_stages = std::move(pull.stages);
  return codecs;
}

}  // namespace bdn
