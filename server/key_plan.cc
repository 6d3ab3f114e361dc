#include "server/key_plan.h"

#include <utility>

#include "common/base/draw.h"
#include "common/base/status.h"
#include "common/wire/frame.h"

namespace bdn {
namespace {

absl::Status FillDense(const KeyEntry& entry, KeyPlan* plan) {
  KeyCodecsOptions options{.push_spec = entry.push_spec,
                           .pull_spec = entry.pull_spec,
                           .warmup_steps = entry.warmup_steps,
                           .dtype = entry.dtype};
  BDN_ASSIGN_OR_RETURN(const RuleSpec rule, RuleSpec::Parse(entry.rule));
  options.holds_weights = rule.holds_weights();
  options.steps_by_signs = rule.steps_by_signs();
  for (const KeySegment& segment : entry.segments) {
    options.segment_elements.push_back(segment.elements);
  }
  BDN_ASSIGN_OR_RETURN(plan->codecs, MakeKeyCodecs(options));
  if (const size_t bytes = plan->codecs.MaxEncodedBytes(); bytes > kMaxPayloadBytes) {
    return InvalidArgument(
        "a partition of %d elements takes up to %d bytes, a frame at most %d: set a lower "
        "--partition-bytes",
        entry.elements, bytes, kMaxPayloadBytes);
  }
  plan->rule = MakeUpdateRule(rule);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::shared_ptr<const KeyPlan>> MakeKeyPlan(const KeyEntry& entry,
                                                           const std::string& tensor_name) {
  auto plan = std::make_shared<KeyPlan>();
  plan->entry = entry;
  plan->name = tensor_name;
  plan->name_hash = Draw::HashName(tensor_name);
  plan->sum_dtype = entry.dtype == DType::kFloat64 ? DType::kFloat64 : DType::kFloat32;
  if (entry.kind == KeyKind::kDense) {
    BDN_RETURN_IF_ERROR(Annotate(FillDense(entry, plan.get()), "tensor '" + tensor_name + "'"));
  }
  return std::shared_ptr<const KeyPlan>(std::move(plan));
}

}  // namespace bdn
