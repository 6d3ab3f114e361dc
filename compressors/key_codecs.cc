#include "compressors/key_codecs.h"

#include "common/base/status.h"
#include "compressors/codec_table.h"

namespace bdn {
namespace {

absl::StatusOr<std::unique_ptr<const SegmentedCodec>> MakeSegmented(const std::string& spec,
                                                                    const KeyCodecsOptions& options,
                                                                    LinkCodec* parsed) {
  BDN_ASSIGN_OR_RETURN(const LinkCodec link, ParseCodecSpec(spec));
  if (!link.codec->Supports(options.dtype)) {
    return InvalidArgument("codec %s does not take %s; use none", link.spec(),
                           DTypeName(options.dtype));
  }
  *parsed = link;
  return std::make_unique<const SegmentedCodec>(link.codec, options.segment_elements,
                                                options.dtype);
}

LinkFeedback FeedbackOf(const LinkCodec& link) {
  return {.on = link.error_feedback,
          .decay = static_cast<float>(link.decay),
          .learning_rate_correction = link.learning_rate_correction};
}

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

absl::StatusOr<KeyCodecs> MakeKeyCodecs(const KeyCodecsOptions& options) {
  KeyCodecs codecs;
  codecs.warmup_steps = options.warmup_steps;
  LinkCodec push_link;
  LinkCodec pull_link;
  LinkCodec dense_link;
  BDN_ASSIGN_OR_RETURN(codecs.push, MakeSegmented(options.push_spec, options, &push_link));
  BDN_ASSIGN_OR_RETURN(codecs.pull, MakeSegmented(options.pull_spec, options, &pull_link));
  BDN_ASSIGN_OR_RETURN(codecs.dense, MakeSegmented("none", options, &dense_link));
  BDN_RETURN_IF_ERROR(CheckMemories(push_link, pull_link, options));
  codecs.push_feedback = FeedbackOf(push_link);
  codecs.pull_feedback = FeedbackOf(pull_link);
  codecs.reply = ReplyOf(pull_link, options);
  const Compressor& push = codecs.push->codec();
  const Compressor& pull = codecs.pull->codec();
  codecs.adds_encoded = codecs.reply == ReplyKind::kAggregate && push.linear() &&
                        push.spec() == pull.spec() && !codecs.pull_feedback.on;
  if (push.shares_draw() && pull.scales_draw() && !codecs.adds_encoded &&
      codecs.reply == ReplyKind::kAggregate) {
    return InvalidArgument(
        "pull codec %s after push codec %s would scale twice what both drew alike; leave unbiased "
        "out of the pull",
        options.pull_spec, options.push_spec);
  }
  return codecs;
}

}  // namespace bdn
