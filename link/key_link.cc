#include "link/key_link.h"

#include <algorithm>

#include "common/base/draw.h"
#include "common/base/status.h"
#include "compressors/codec_schedule.h"
#include "link/row_link.h"

namespace bdn {

absl::StatusOr<KeyLink> MakeKeyLink(const KeyEntry& entry, const std::string& first_tensor) {
  KeyLink link;
  link.name_hash = Draw::HashName(first_tensor);
  if (entry.kind != KeyKind::kDense) return link;
  BDN_ASSIGN_OR_RETURN(link.rule, RuleSpec::Parse(entry.rule));
  KeyCodecsOptions options{.push_spec = entry.push_spec,
                           .pull_spec = entry.pull_spec,
                           .warmup_steps = entry.warmup_steps,
                           .dtype = entry.dtype,
                           .holds_weights = link.rule.holds_weights(),
                           .steps_by_signs = link.rule.steps_by_signs()};
  for (const KeySegment& segment : entry.segments) {
    options.segment_elements.push_back(segment.elements);
  }
  BDN_ASSIGN_OR_RETURN(link.codecs, MakeKeyCodecs(options));
  return link;
}

uint64_t LongestPayloadOf(const KeyEntry& entry, const KeyCodecs& codecs) {
  if (entry.kind == KeyKind::kRows) return kMaxRowsPayload;
  const uint64_t plain = KeyBytes(entry);
  return entry.kind == KeyKind::kDense ? std::max<uint64_t>(plain, codecs.MaxEncodedBytes())
                                       : plain;
}

absl::Status CanonicalizeSpecs(TensorDeclaration* tensor) {
  for (SharedText* spec : {&tensor->push_spec, &tensor->pull_spec}) {
    BDN_ASSIGN_OR_RETURN(const CodecSchedule schedule, ParseCodecSchedule(*spec));
    *spec = schedule.spec();
  }
  BDN_ASSIGN_OR_RETURN(const RuleSpec rule, RuleSpec::Parse(tensor->rule));
  tensor->rule = rule.text();
  // One key of the whole tensor stands for all its partitions: whether specs go together does not
  // depend on their lengths.
  const KeyEntry whole{.dtype = tensor->dtype,
                       .push_spec = tensor->push_spec,
                       .pull_spec = tensor->pull_spec,
                       .rule = tensor->rule,
                       .warmup_steps = tensor->warmup_steps,
                       .segments = {{.elements = tensor->elements}}};
  return MakeKeyLink(whole, tensor->name).status();
}

}  // namespace bdn
