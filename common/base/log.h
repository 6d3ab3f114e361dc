#ifndef BANDONEON_COMMON_BASE_LOG_H_
#define BANDONEON_COMMON_BASE_LOG_H_

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"

namespace bdn {

enum class LogLevel { kDebug, kInfo, kWarning, kError, kOff };

// Sets the process's sink to standard error at `level`, each line tagged with `who` ("server 0").
// Before it is called, lines of kWarning and up go to standard error untagged.
void InitLog(LogLevel level, std::string_view who);
// InvalidArgument names the word that is no level.
absl::Status ParseLogLevel(std::string_view text, LogLevel* level);
// One line whatever is in it: control characters are escaped. It is written when this returns, unless
// nobody takes what is written to standard error: then it waits for its turn, up to a bound, beyond which
// lines are dropped and counted. No caller waits for longer than a tenth of a second.
void LogLine(LogLevel level, const std::string& line);
// Whole lines, as they are, at every level.
void LogPlain(std::string text);
// Until all lines are written; false when `most` passed before. At exit there is a second for it.
bool FlushLog(absl::Duration most);

template <typename... Args>
void LogDebug(const absl::FormatSpec<Args...>& format, const Args&... args) {
  LogLine(LogLevel::kDebug, absl::StrFormat(format, args...));
}
template <typename... Args>
void LogInfo(const absl::FormatSpec<Args...>& format, const Args&... args) {
  LogLine(LogLevel::kInfo, absl::StrFormat(format, args...));
}
template <typename... Args>
void LogWarning(const absl::FormatSpec<Args...>& format, const Args&... args) {
  LogLine(LogLevel::kWarning, absl::StrFormat(format, args...));
}
template <typename... Args>
void LogError(const absl::FormatSpec<Args...>& format, const Args&... args) {
  LogLine(LogLevel::kError, absl::StrFormat(format, args...));
}

}  // namespace bdn

#endif  // BANDONEON_COMMON_BASE_LOG_H_
