#ifndef BANDONEON_COMMON_BASE_LOG_CONTEXT_H_
#define BANDONEON_COMMON_BASE_LOG_CONTEXT_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/base/log.h"

// How a process's log lines look, and what those of JSON say of where the process is.

namespace bdn {

enum class LogFormat { kText, kJson };

// InvalidArgument names the word that is no format.
absl::Status ParseLogFormat(std::string_view text, LogFormat* format);
// Of all lines from now on. Thread-safe.
void SetLogFormat(LogFormat format);
LogFormat CurrentLogFormat();

// A process's place in a job, as far as it is known.
struct LogPlace {
  std::string role;  // "worker"; empty: what InitLog was told
  std::string job;
  std::optional<uint32_t> node;
  std::optional<int32_t> rank;
  std::optional<uint32_t> epoch;
};

// These are of the process: of several nodes in one, as tests have them, the last to join is named. Each
// is thread-safe; SetLogStep costs a store.
//
// Also forgets the step.
void SetLogPlace(LogPlace place);
void SetLogEpoch(uint32_t epoch);
void SetLogStep(uint64_t step);

// One line of JSON, without its end:
// {"time": RFC 3339 in UTC, "level", "role", "message", and "job", "node", "rank", "epoch", "step" where
// they are known}.
std::string JsonLogLine(absl::Time time, LogLevel level, std::string_view who,
                        std::string_view message);

}  // namespace bdn

#endif  // BANDONEON_COMMON_BASE_LOG_CONTEXT_H_
