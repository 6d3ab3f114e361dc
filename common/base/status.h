#ifndef BANDONEON_COMMON_BASE_STATUS_H_
#define BANDONEON_COMMON_BASE_STATUS_H_

#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/cord.h"
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

// Returns a status with the same code and facts, and another message. OK stays OK.
inline absl::Status WithMessage(const absl::Status& status, const std::string& message) {
  absl::Status other(status.code(), message);
  status.ForEachPayload(
      [&other](absl::string_view url, const absl::Cord& fact) { other.SetPayload(url, fact); });
  return other;
}

// Returns the same code and facts with `context: ` before the message. OK stays OK.
inline absl::Status Annotate(const absl::Status& status, const std::string& context) {
  if (status.ok()) return status;
  return WithMessage(status, absl::StrFormat("%s: %s", context, status.message()));
}

// The error of a node that the job has gone on without: its process may be started anew. Abseil has
// no code for that, so it is the code Aborted with a fact.
inline constexpr char kEvictedFact[] = "bandoneon/evicted";
template <typename... Args>
absl::Status Evicted(const absl::FormatSpec<Args...>& format, const Args&... args) {
  absl::Status status = absl::AbortedError(absl::StrFormat(format, args...));
  status.SetPayload(kEvictedFact, absl::Cord());
  return status;
}
inline bool IsEvicted(const absl::Status& status) {
  return status.GetPayload(kEvictedFact).has_value();
}

// The number of a status where it goes to another process or to C: that of its code, or
// kEvictedNumber. StatusOf makes a status from a number and a message; one that is no such number
// gives the code Unknown.
inline constexpr int kEvictedNumber = 17;
inline int NumberOf(const absl::Status& status) {
  return IsEvicted(status) ? kEvictedNumber : static_cast<int>(status.code());
}
inline absl::Status StatusOf(uint32_t number, const std::string& message) {
  if (number == kEvictedNumber) return Evicted("%s", message);
  const bool is_code = number <= static_cast<uint32_t>(absl::StatusCode::kUnauthenticated);
  return absl::Status(is_code ? static_cast<absl::StatusCode>(number) : absl::StatusCode::kUnknown,
                      message);
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
