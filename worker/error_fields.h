#ifndef BANDONEON_WORKER_ERROR_FIELDS_H_
#define BANDONEON_WORKER_ERROR_FIELDS_H_

#include <string>
#include <string_view>

#include "absl/status/status.h"

// Facts that travel with an error beside its message, so that callers need not parse prose.

namespace bdn {

// The facts of an error; each is empty where it is not known.
struct ErrorFields {
  std::string tensor;
  std::string step;
  std::string stage;        // such as encode, exchange, decode
  std::string waiting_for;  // "worker 1, worker 3" or "server 0"
};

// Returns the status with the fields that are not empty, and a message that begins with them. OK
// stays OK.
absl::Status WithFields(const absl::Status& status, const ErrorFields& fields);
// Returns the status with the fields that are not empty, and an unchanged message. OK stays OK.
absl::Status AttachFields(const absl::Status& status, const ErrorFields& fields);
// Returns one field of an error: "tensor", "step", "stage" or "waiting_for"; "" where it is not
// set.
std::string GetErrorField(const absl::Status& status, std::string_view field);

}  // namespace bdn

#endif  // BANDONEON_WORKER_ERROR_FIELDS_H_
