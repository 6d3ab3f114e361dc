#ifndef BANDONEON_CLI_RECORDING_FLAGS_H_
#define BANDONEON_CLI_RECORDING_FLAGS_H_

#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "cli/commands.h"
#include "trace/job_trace.h"

namespace bdn::cli {

// The flags that `bandoneon replay` and `bandoneon tune` have in common.
inline constexpr Flag kCostsFlag = {"costs", 0, "FILE",
                                    "what codecs cost, of `bandoneon bench codecs --json`"};
inline constexpr Flag kJobFlag = {"job", 0, "NAME", "of which job, where DIR has several"};
inline constexpr Flag kLastFlag = {
    "last", 0, "TIME", "read only what ended so long before the end of each recording, or later"};

// The arguments of such a command.
struct RecordingArguments {
  std::string directory;
  CommandFlags flags;
  JobSelection selection;
  std::string costs;  // the text of the file
};

// Parses a directory and flags. InvalidArgument says what is wrong; NotFound names a file of costs
// that cannot be read.
absl::StatusOr<RecordingArguments> ParseRecordingArguments(std::span<const Flag> known,
                                                           Arguments args);

// Print why a command failed, and return its exit code: 1, or of FailedBy that of wrong usage where
// the arguments ask for what cannot be.
int FailedWith(const char* command, const absl::Status& status);
int FailedBy(const char* command, const absl::Status& status);

}  // namespace bdn::cli

#endif  // BANDONEON_CLI_RECORDING_FLAGS_H_
