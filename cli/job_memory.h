#ifndef BANDONEON_CLI_JOB_MEMORY_H_
#define BANDONEON_CLI_JOB_MEMORY_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

namespace bdn::cli {

// The memory that the processes of a role hold, in bytes a parameter. The servers' is that of all
// servers together, as each parameter is on one of them; the workers' is that of one worker on
// average.
struct JobMemory {
  double server_resident = 0;  // growth of the resident set since the workers joined
  double worker_resident = 0;  // the same, without the caller's tensors
  // The servers' own count by purpose: the metrics bytes_... of their last report, by name without
  // "bytes_".
  std::vector<std::pair<std::string, double>> server_purposes;
};

// Returns the sums of the gauges of the files that servers wrote (setting metrics-file), divided by
// `parameters`. Internal names a file that cannot be understood.
absl::StatusOr<std::vector<std::pair<std::string, double>>> ReadPurposes(
    const std::vector<std::string>& metrics_files, double parameters);

// Return the same as text for people, and for --json.
std::string MemoryText(const JobMemory& memory);
std::string MemoryJson(const JobMemory& memory);

}  // namespace bdn::cli

#endif  // BANDONEON_CLI_JOB_MEMORY_H_
