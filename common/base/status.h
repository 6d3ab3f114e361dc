#ifndef BANDONEON_COMMON_BASE_STATUS_H_
#define BANDONEON_COMMON_BASE_STATUS_H_

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_format.h"

// Status codes say what the caller does next: kUnavailable: retry; kAborted: redo the step;
// kFailedPrecondition: resync first; kInvalidArgument: fix the call; kDataLoss: drop the frame and
// keep the peer's state; the others mean what their names say.

namespace bdn {

#define BDN_STATUS_MAKER(Name, kCode)                                               \
  template <typename... Args>                                                       \
  absl::Status Name(const absl::FormatSpec<Args...>& format, const Args&... args) { \
    return absl::Status(absl::StatusCode::kCode, absl::StrFormat(format, args...)); \
  }
BDN_STATUS_MAKER(Aborted, kAborted)
BDN_STATUS_MAKER(AlreadyExists, kAlreadyExists)
BDN_STATUS_MAKER(Cancelled, kCancelled)
BDN_STATUS_MAKER(DataLoss, kDataLoss)
BDN_STATUS_MAKER(DeadlineExceeded, kDeadlineExceeded)
BDN_STATUS_MAKER(FailedPrecondition, kFailedPrecondition)
BDN_STATUS_MAKER(Internal, kInternal)
BDN_STATUS_MAKER(InvalidArgument, kInvalidArgument)
BDN_STATUS_MAKER(NotFound, kNotFound)
BDN_STATUS_MAKER(OutOfRange, kOutOfRange)
BDN_STATUS_MAKER(PermissionDenied, kPermissionDenied)
BDN_STATUS_MAKER(ResourceExhausted, kResourceExhausted)
BDN_STATUS_MAKER(Unauthenticated, kUnauthenticated)
BDN_STATUS_MAKER(Unavailable, kUnavailable)
BDN_STATUS_MAKER(Unimplemented, kUnimplemented)
#undef BDN_STATUS_MAKER

// Returns the same code with `context: ` before the message. OK stays OK.
inline absl::Status Annotate(const absl::Status& status, const std::string& context) {
  if (status.ok()) return status;
  return absl::Status(status.code(), absl::StrFormat("%s: %s", context, status.message()));
}

}  // namespace bdn

#define BDN_CONCAT_INNER(a, b) a##b
#define BDN_CONCAT(a, b) BDN_CONCAT_INNER(a, b)

#define BDN_RETURN_IF_ERROR(expression)                                              \
  do {                                                                               \
    if (absl::Status bdn_status = (expression); !bdn_status.ok()) return bdn_status; \
  } while (false)

#define BDN_ASSIGN_OR_RETURN(lhs, expression) \
  BDN_ASSIGN_OR_RETURN_IMPL(BDN_CONCAT(bdn_statusor_, __LINE__), lhs, expression)
#define BDN_ASSIGN_OR_RETURN_IMPL(result, lhs, expression) \
  auto result = (expression);                              \
  if (!result.ok()) return result.status();                \
  lhs = std::move(result).value()

#endif  // BANDONEON_COMMON_BASE_STATUS_H_
