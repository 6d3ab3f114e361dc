#include "common/telemetry/job_report.h"

#include <fstream>
#include <vector>

#include "common/base/log.h"

namespace bdn {

void ReportJob(const Registry& registry, const std::string& metrics_file) {
  const std::string counted = ToText(registry.Collect());
  if (!counted.empty()) LogInfo("in this job: %s", counted);
  if (metrics_file.empty()) return;
  std::ofstream file(metrics_file);
  file << registry.Json() << std::endl;
  if (!file) LogWarning("cannot write metrics-file %s", metrics_file);
}

}  // namespace bdn
