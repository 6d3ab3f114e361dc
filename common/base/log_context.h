#ifndef BANDONEON_COMMON_BASE_LOG_CONTEXT_H_
#define BANDONEON_COMMON_BASE_LOG_CONTEXT_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/base/log.h"

// The format of a process's log lines, and the facts about the process that lines of JSON carry.

namespace bdn {

// The format of log lines: plain text, or one JSON object a line.
enum class LogFormat { kText, kJson };

// Parses a format. InvalidArgument names a word that is no format.
absl::Status ParseLogFormat(std::string_view text, LogFormat* format);
// Sets the format of all lines from now on. Thread-safe.
void SetLogFormat(LogFormat format);
LogFormat CurrentLogFormat();

// The position of a process in a job, as far as it is known.
struct LogPlace {
  std::string role;  // e.g. "worker"; empty: the tag that InitLog was given
  std::string job;
  std::optional<uint32_t> node;
  std::optional<int32_t> rank;
  std::optional<uint32_t> epoch;
};

// These set facts of the whole process: where several nodes live in one process, as in tests, the
// last to join is named. Each is thread-safe; SetLogStep costs a store. SetLogPlace also forgets
// the step.
void SetLogPlace(LogPlace place);
void SetLogEpoch(uint32_t epoch);
void SetLogStep(uint64_t step);

// Returns one line of JSON, without its end:
// {"time": RFC 3339 in UTC, "level", "role", "message", and, where they are known, "job", "node",
// "rank", "epoch", "step"}.
std::string JsonLogLine(absl::Time time, LogLevel level, std::string_view who,
                        std::string_view message);

}  // namespace bdn

#endif  // BANDONEON_COMMON_BASE_LOG_CONTEXT_H_
