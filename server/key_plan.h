#ifndef BANDONEON_SERVER_KEY_PLAN_H_
#define BANDONEON_SERVER_KEY_PLAN_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "common/cluster/catalogue.h"
#include "link/key_cost.h"
#include "link/row_link.h"
#include "server/rows/row_rule.h"
#include "server/update_rule.h"

namespace bdn {

// The declaration of a key, parsed and ready for use. All states of the key share one plan. It is
// immutable but for one number: KeyCodecs::GoUncompressed sets the step from which on the key is
// sent uncompressed.
struct KeyPlan {
  KeyEntry entry;
  std::string name;        // the name of its first tensor, for errors
  uint64_t name_hash = 0;  // the hash of `name`, for Draw
  DType sum_dtype = DType::kFloat32;
  KeyCodecs codecs;
  RuleSpec rule_spec;
  std::unique_ptr<const UpdateRule> rule;  // null: the reply is the mean
  // Of a key of rows; else null.
  std::unique_ptr<const RowLink> rows;
  std::unique_ptr<const RowRule> row_rule;

  // Returns the longest payload that any frame about the key may have.
  uint64_t MaxPayloadBytes() const;
  KeyCost CostFor(size_t workers) const { return CostOfKey(entry, rule_spec, codecs, workers); }
};

// Makes a plan from a declaration. InvalidArgument names the tensor and says what is wrong with its
// codec specs or its rule. The plan of a broadcast key has neither codecs nor a rule. `tables` are
// the declarations of the segments of a key of rows; else there are none.
absl::StatusOr<std::shared_ptr<const KeyPlan>> MakeKeyPlan(
    const KeyEntry& entry, const std::string& tensor_name,
    std::span<const TensorDeclaration> tables = {});

}  // namespace bdn

#endif  // BANDONEON_SERVER_KEY_PLAN_H_
