#ifndef BANDONEON_COMMON_BASE_LOG_LIMIT_H_
#define BANDONEON_COMMON_BASE_LOG_LIMIT_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/mutex.h"

namespace bdn {

// Returns `text`, which may come from anybody, in a form that may go into a log: printable ASCII,
// all else as \x.., cut after 128 bytes.
std::string Printable(std::string_view text);

// A limit on log lines that a peer can cause: at most one line in an interval, with the number of
// lines left out since the last one. Thread-safe.
class LimitedLog {
 public:
  // Borrows `clock`.
  explicit LimitedLog(const Clock* clock, absl::Duration interval = absl::Seconds(1))
      : clock_(clock), interval_(interval) {}

  template <typename... Args>
  void Warning(const absl::FormatSpec<Args...>& format, const Args&... args) {
    uint64_t left_out;
    if (!MayLog(&left_out)) return;
    std::string line = absl::StrFormat(format, args...);
    if (left_out > 0) absl::StrAppendFormat(&line, " (and %d lines like this before)", left_out);
    LogLine(LogLevel::kWarning, line);
  }

  // Returns false where no line may be written now, and counts it. Otherwise returns true and sets
  // `left_out` to the number of lines left out since the last one.
  bool MayLog(uint64_t* left_out);

 private:
  const Clock* const clock_;
  const absl::Duration interval_;
  Mutex mu_;
  absl::Time next_ ABSL_GUARDED_BY(mu_) = absl::InfinitePast();
  uint64_t left_out_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace bdn

#endif  // BANDONEON_COMMON_BASE_LOG_LIMIT_H_
