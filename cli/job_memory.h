#ifndef BANDONEON_CLI_JOB_MEMORY_H_
#define BANDONEON_CLI_JOB_MEMORY_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

namespace bdn::cli {

// What the processes of a role hold, in bytes a parameter. Servers' are of all of them together, as
// each parameter is on one; workers' are of one on average.
struct JobMemory {
  double server_resident = 0;  // growth of the resident set since the workers joined
  double worker_resident = 0;  // the same, without the caller's tensors
  // As the servers count it: the metrics bytes_... of their last report, by name without bytes_.
  std::vector<std::pair<std::string, double>> server_purposes;
};

// Adds up the gauges of the files that servers wrote (setting metrics-file).
absl::StatusOr<std::vector<std::pair<std::string, double>>> ReadPurposes(
    const std::vector<std::string>& metrics_files, double parameters);

// For people and for --json: what JobMemory says of whom.
std::string MemoryText(const JobMemory& memory);
std::string MemoryJson(const JobMemory& memory);

}  // namespace bdn::cli

#endif  // BANDONEON_CLI_JOB_MEMORY_H_
