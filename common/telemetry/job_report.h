#ifndef BANDONEON_COMMON_TELEMETRY_JOB_REPORT_H_
#define BANDONEON_COMMON_TELEMETRY_JOB_REPORT_H_

#include <string>

#include "common/telemetry/registry.h"

namespace bdn {

// Writes what a daemon counted in one job, at the job's end: as a line of the log, and as JSON in
// `metrics_file`, unless that is empty. A file that cannot be written is logged.
void ReportJob(const Registry& registry, const std::string& metrics_file);

}  // namespace bdn

#endif  // BANDONEON_COMMON_TELEMETRY_JOB_REPORT_H_
