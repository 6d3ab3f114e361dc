#include "server/key_state.h"

#include <utility>

#include "common/base/draw.h"
#include "common/base/status.h"

namespace bdn {
namespace {

absl::StatusOr<std::unique_ptr<const SegmentedCodec>> MakeCodec(const KeyEntry& entry,
                                                                const LinkCodec& link) {
  if (!link.codec->Supports(entry.dtype)) {
    return InvalidArgument("codec %s does not take %s", link.spec(), DTypeName(entry.dtype));
  }
  std::vector<size_t> elements;
  for (const KeySegment& segment : entry.segments) elements.push_back(segment.elements);
  return std::make_unique<const SegmentedCodec>(link.codec, std::move(elements), entry.dtype);
}

absl::Status FillDense(const KeyEntry& entry, KeyPlan* plan) {
  BDN_ASSIGN_OR_RETURN(const LinkCodec push, ParseCodecSpec(entry.push_spec));
  BDN_ASSIGN_OR_RETURN(const LinkCodec pull, ParseCodecSpec(entry.pull_spec));
  BDN_ASSIGN_OR_RETURN(const LinkCodec dense, ParseCodecSpec("none"));
  BDN_ASSIGN_OR_RETURN(plan->push, MakeCodec(entry, push));
  BDN_ASSIGN_OR_RETURN(plan->pull, MakeCodec(entry, pull));
  BDN_ASSIGN_OR_RETURN(plan->dense, MakeCodec(entry, dense));
  plan->pull_feedback = pull.error_feedback;
  BDN_ASSIGN_OR_RETURN(plan->rule, MakeUpdateRule(entry.rule));
  if (!plan->rule->Supports(plan->sum_dtype)) {
    return InvalidArgument("rule %s does not take %s", entry.rule, DTypeName(entry.dtype));
  }
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
