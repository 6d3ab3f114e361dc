#ifndef BANDONEON_CLI_JOB_STAGES_H_
#define BANDONEON_CLI_JOB_STAGES_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/local_job.h"
#include "cli/stage_table.h"

namespace bdn::cli {

// The counts of the telemetry phases through which keys pass, of all nodes of a role in a
// benchmark's job.
struct JobStages {
  StageRows workers;
  StageRows servers;
};

// Returns whether the nodes of a job with these settings count phases at all.
bool CountStages(const Variables& settings);

// Returns the servers' phases once the scheduler knows, by their heartbeats, of `steps` whole steps
// of all workers. Unavailable: it does not yet.
absl::StatusOr<StageRows> AskServerStages(const LocalJob& job, const JobOptions& options,
                                          int64_t steps);
// Returns the same at the job's end, from the files that the servers wrote (setting metrics-file).
absl::StatusOr<StageRows> ReadServerStages(const std::vector<std::string>& metrics_files);

// Return the phases as text for people, and for --json.
std::string JobStagesText(const JobStages& stages);
std::string JobStagesJson(const JobStages& stages);

}  // namespace bdn::cli

#endif  // BANDONEON_CLI_JOB_STAGES_H_
