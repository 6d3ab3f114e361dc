#include "compressors/key_codecs.h"

#include "common/base/status.h"
#include "compressors/codec_table.h"

namespace bdn {
namespace {

absl::StatusOr<std::unique_ptr<const SegmentedCodec>> MakeSegmented(const std::string& spec,
                                                                    const KeyCodecsOptions& options,
                                                                    LinkFeedback* feedback) {
  BDN_ASSIGN_OR_RETURN(const LinkCodec link, ParseCodecSpec(spec));
  if (!link.codec->Supports(options.dtype)) {
    return InvalidArgument("codec %s does not take %s; use none", link.spec(),
                           DTypeName(options.dtype));
  }
  if (link.delta) {
    return InvalidArgument("%s is for weights that servers hold; gradients take ef(...)",
                           link.spec());
  }
  if (feedback != nullptr) {
    *feedback = {.on = link.error_feedback,
                 .decay = static_cast<float>(link.decay),
                 .learning_rate_correction = link.learning_rate_correction};
  }
  return std::make_unique<const SegmentedCodec>(link.codec, options.segment_elements,
                                                options.dtype);
}

}  // namespace

absl::StatusOr<KeyCodecs> MakeKeyCodecs(const KeyCodecsOptions& options) {
  KeyCodecs codecs;
  codecs.warmup_steps = options.warmup_steps;
  BDN_ASSIGN_OR_RETURN(codecs.push,
                       MakeSegmented(options.push_spec, options, &codecs.push_feedback));
  BDN_ASSIGN_OR_RETURN(codecs.pull,
                       MakeSegmented(options.pull_spec, options, &codecs.pull_feedback));
  BDN_ASSIGN_OR_RETURN(codecs.dense, MakeSegmented("none", options, nullptr));
  const Compressor& push = codecs.push->codec();
  const Compressor& pull = codecs.pull->codec();
  codecs.adds_encoded = push.linear() && push.spec() == pull.spec() && !codecs.pull_feedback.on;
  if (push.shares_draw() && pull.scales_draw() && !codecs.adds_encoded) {
    return InvalidArgument(
        "pull codec %s after push codec %s would scale twice what both drew alike; leave unbiased "
        "out of the pull",
        options.pull_spec, options.push_spec);
  }
  return codecs;
}

}  // namespace bdn
