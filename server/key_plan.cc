#include "server/key_plan.h"

#include <utility>
#include <vector>

#include "common/base/status.h"
#include "common/wire/frame.h"
#include "link/key_link.h"

namespace bdn {
namespace {

absl::Status FillRows(const KeyEntry& entry, std::span<const TensorDeclaration> tables,
                      KeyPlan* plan) {
  std::vector<const TensorDeclaration*> all;
  for (const TensorDeclaration& table : tables) all.push_back(&table);
  BDN_ASSIGN_OR_RETURN(RowLink link, MakeRowLink(entry, all));
  plan->row_rule = MakeRowRule(link.rule);
  plan->rows = std::make_unique<const RowLink>(std::move(link));
  return absl::OkStatus();
}

absl::Status FillLink(const KeyEntry& entry, KeyPlan* plan) {
  BDN_ASSIGN_OR_RETURN(KeyLink link, MakeKeyLink(entry, plan->name));
  plan->name_hash = link.name_hash;
  if (entry.kind != KeyKind::kDense) return absl::OkStatus();
  plan->codecs = std::move(link.codecs);
  plan->rule_spec = std::move(link.rule);
  if (const size_t bytes = plan->codecs.MaxEncodedBytes(); bytes > kMaxPayloadBytes) {
    return InvalidArgument(
        "a partition of %d elements takes up to %d bytes, a frame at most %d: set a lower "
        "--partition-bytes",
        entry.elements, bytes, kMaxPayloadBytes);
  }
  plan->rule = MakeUpdateRule(plan->rule_spec);
  return absl::OkStatus();
}

}  // namespace

uint64_t KeyPlan::MaxPayloadBytes() const { return LongestPayloadOf(entry, codecs); }

absl::StatusOr<std::shared_ptr<const KeyPlan>> MakeKeyPlan(
    const KeyEntry& entry, const std::string& tensor_name,
    std::span<const TensorDeclaration> tables) {
  auto plan = std::make_shared<KeyPlan>();
  plan->entry = entry;
  plan->name = tensor_name;
  plan->sum_dtype = entry.dtype == DType::kFloat64 ? DType::kFloat64 : DType::kFloat32;
  if (entry.kind == KeyKind::kRows) BDN_RETURN_IF_ERROR(FillRows(entry, tables, plan.get()));
  BDN_RETURN_IF_ERROR(Annotate(FillLink(entry, plan.get()), "tensor '" + tensor_name + "'"));
  return std::shared_ptr<const KeyPlan>(std::move(plan));
}

}  // namespace bdn
