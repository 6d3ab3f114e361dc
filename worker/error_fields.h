#ifndef BANDONEON_WORKER_ERROR_FIELDS_H_
#define BANDONEON_WORKER_ERROR_FIELDS_H_

#include <string>
#include <string_view>

#include "absl/status/status.h"

// Facts that travel with an error besides its message, so that callers need not read prose.

namespace bdn {

struct ErrorFields {
  std::string tensor;
  std::string step;
  std::string stage;        // encode, exchange, decode
  std::string waiting_for;  // "worker 1, worker 3" or "server 0"
};

// The status with the fields that are not empty, and a message that begins with them. OK stays OK.
absl::Status WithFields(const absl::Status& status, const ErrorFields& fields);
// The status with the fields that are not empty, and the message that it had.
absl::Status AttachFields(const absl::Status& status, const ErrorFields& fields);
// One field of an error: "tensor", "step", "stage", "waiting_for"; "" where it is not there.
std::string GetErrorField(const absl::Status& status, std::string_view field);

}  // namespace bdn

#endif  // BANDONEON_WORKER_ERROR_FIELDS_H_
