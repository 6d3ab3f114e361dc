#include "server/update_rule.h"

#include <string>

#include "common/base/status.h"
#include "server/rules/mean.h"

namespace bdn {

absl::StatusOr<std::unique_ptr<const UpdateRule>> MakeUpdateRule(std::string_view name) {
  if (name == "mean") return std::make_unique<const MeanRule>();
  return NotFound("unknown update rule '%s'; there is: mean", std::string(name));
}

}  // namespace bdn
