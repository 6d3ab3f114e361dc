#ifndef BANDONEON_COMMON_BASE_LOG_H_
#define BANDONEON_COMMON_BASE_LOG_H_

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"

namespace bdn {

// The severity of a line. A process writes the lines of its own level and above; at kOff none.
enum class LogLevel { kDebug, kInfo, kWarning, kError, kOff };

// Sets the level of the process's log, which goes to standard error, and the tag `who` ("server 0")
// of each line. Before it is called, lines of kWarning and up are written, tagged "bandoneon".
void InitLog(LogLevel level, std::string_view who);
// Parses a level. InvalidArgument names a word that is no level.
absl::Status ParseLogLevel(std::string_view text, LogLevel* level);
// Writes one line, whatever is in it: control characters are escaped. The line is written when this
// returns, unless nobody reads standard error: then it waits for its turn in a bounded queue,
// beyond which lines are dropped and counted. No caller waits for longer than a tenth of a second.
void LogLine(LogLevel level, const std::string& line);
// Writes whole lines as they are, whatever the level.
void LogPlain(std::string text);
// Waits until all lines are written; returns false when `most` passed before. At exit there is a
// second for it.
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
