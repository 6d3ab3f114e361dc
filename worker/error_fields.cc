#include "worker/error_fields.h"

#include "absl/strings/cord.h"
#include "absl/types/optional.h"
#include "common/base/status.h"

namespace bdn {
namespace {

std::string Url(std::string_view field) { return "bandoneon/" + std::string(field); }

}  // namespace

absl::Status WithFields(const absl::Status& status, const ErrorFields& fields) {
  if (status.ok()) return status;
  // The facts are in the message for people, and in payloads of the status for programs, which need
  // not parse the message.
  std::string where;
  if (!fields.tensor.empty()) where += "tensor '" + fields.tensor + "'";
  if (!fields.step.empty()) where += " step " + fields.step;
  if (!fields.stage.empty()) where += " (" + fields.stage + ")";
  std::string message =
      where.empty() ? std::string(status.message()) : where + ": " + std::string(status.message());
  if (!fields.waiting_for.empty()) message += "; waiting for " + fields.waiting_for;
  return AttachFields(WithMessage(status, message), fields);
}

absl::Status AttachFields(const absl::Status& status, const ErrorFields& fields) {
  absl::Status full = status;
  const auto add = [&full](std::string_view field, const std::string& value) {
    if (!value.empty()) full.SetPayload(Url(field), absl::Cord(value));
  };
  add("tensor", fields.tensor);
  add("step", fields.step);
  add("stage", fields.stage);
  add("waiting_for", fields.waiting_for);
  return full;
}

std::string GetErrorField(const absl::Status& status, std::string_view field) {
  const absl::optional<absl::Cord> value = status.GetPayload(Url(field));
  return value.has_value() ? std::string(*value) : std::string();
}

}  // namespace bdn
