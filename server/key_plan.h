#ifndef BANDONEON_SERVER_KEY_PLAN_H_
#define BANDONEON_SERVER_KEY_PLAN_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/cluster/catalogue.h"
#include "link/key_cost.h"
#include "server/update_rule.h"

namespace bdn {

// What was declared of a key, ready for use. Immutable but for the step that KeyCodecs may go uncompressed
// from; shared by copies of the key's state.
struct KeyPlan {
  KeyEntry entry;
  std::string name;        // of its first tensor, for errors
  uint64_t name_hash = 0;  // for Draw
  DType sum_dtype = DType::kFloat32;
  KeyCodecs codecs;
  RuleSpec rule_spec;
  std::unique_ptr<const UpdateRule> rule;  // null: the reply is the mean

  // Of any frame about the key.
  uint64_t MaxPayloadBytes() const;
  KeyCost CostFor(size_t workers) const { return CostOfKey(entry, rule_spec, codecs, workers); }
};

// InvalidArgument names the tensor and what is wrong with its specs or rule. A broadcast key has
// neither codecs nor a rule.
absl::StatusOr<std::shared_ptr<const KeyPlan>> MakeKeyPlan(const KeyEntry& entry,
                                                           const std::string& tensor_name);

}  // namespace bdn

#endif  // BANDONEON_SERVER_KEY_PLAN_H_
