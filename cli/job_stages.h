#ifndef BANDONEON_CLI_JOB_STAGES_H_
#define BANDONEON_CLI_JOB_STAGES_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/local_job.h"
#include "cli/stage_table.h"

namespace bdn::cli {

// What a benchmark's nodes count of the stages that keys pass through: of all nodes of a role.
struct JobStages {
  StageRows workers;
  StageRows servers;
};

// Whether the nodes of a job with these settings count at all.
bool CountStages(const Variables& settings);

// The servers' stages once the scheduler knows of `steps` whole steps of all workers, by the
// servers' heartbeats. Unavailable: it does not yet.
absl::StatusOr<StageRows> AskServerStages(const LocalJob& job, const JobOptions& options,
                                          int64_t steps);
// The same at the job's end, from the files that the servers wrote (setting metrics-file).
absl::StatusOr<StageRows> ReadServerStages(const std::vector<std::string>& metrics_files);

// For people and for --json.
std::string JobStagesText(const JobStages& stages);
std::string JobStagesJson(const JobStages& stages);

}  // namespace bdn::cli

#endif  // BANDONEON_CLI_JOB_STAGES_H_
