#include "cli/job_stages.h"

#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>

#include "absl/strings/str_format.h"
#include "cli/commands.h"

namespace bdn::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kTimeout = 5;  // seconds

// Returns the settings by which the scheduler of a job lets us ask.
std::vector<std::string> AskerSettings(const LocalJob& job, const JobOptions& options) {
  std::vector<std::string> settings = {"scheduler=" + job.scheduler_address()};
  if (!job.token_file().empty()) settings.push_back("token-file=" + job.token_file());
  constexpr std::pair<const char*, const char*> kNames[] = {
      {"BANDONEON_TOKEN", "token"},     {"BANDONEON_TOKEN_FILE", "token-file"},
      {"BANDONEON_TLS_CA", "tls-ca"},   {"BANDONEON_TLS_CERT", "tls-cert"},
      {"BANDONEON_TLS_KEY", "tls-key"}, {"BANDONEON_INSECURE", "insecure"}};
  for (const auto& [variable, value] : options.settings) {
    for (const auto& [known, setting] : kNames) {
      if (variable == known) settings.push_back(absl::StrFormat("%s=%s", setting, value));
    }
  }
  return settings;
}

uint64_t ItemsOf(const StageRows& rows, std::string_view stage) {
  for (const StageRow& row : rows) {
    if (row.name == stage) return row.items;
  }
  return 0;
}

absl::StatusOr<StageRows> SumServers(const Json& status) {
  StageRows sum;
  for (const Json& node : status.at("nodes")) {
    if (node.at("role") != "server") continue;
    const auto rows = ParseStages(node.at("stages").dump());
    if (!rows.ok()) return rows.status();
    AddStages(*rows, &sum);
  }
  return sum;
}

}  // namespace

bool CountStages(const Variables& settings) {
  const char* exported = getenv("BANDONEON_STAGE_TIMES");
  std::string value = exported == nullptr ? "" : exported;
  for (const auto& [variable, set] : settings) {
    if (variable == "BANDONEON_STAGE_TIMES") value = set;
  }
  return value != "off";
}

absl::StatusOr<StageRows> AskServerStages(const LocalJob& job, const JobOptions& options,
                                          int64_t steps) {
  const auto answer = AskScheduler(AskerSettings(job, options), kTimeout);
  if (!answer.ok()) return answer.status();
  try {
    const Json status = Json::parse(*answer);
    auto sum = SumServers(status);
    if (!sum.ok()) return sum.status();
    // A reply is the last phase of a key at a server: with all replies counted, all earlier phases
    // of those steps are, too.
    const uint64_t replies = status.at("keys").get<uint64_t>() *
                             static_cast<uint64_t>(options.workers) * static_cast<uint64_t>(steps);
    if (ItemsOf(*sum, "reply") < replies) return absl::UnavailableError("not all of them yet");
    return sum;
  } catch (const Json::exception& error) {
    return absl::InternalError(error.what());
  }
}

absl::StatusOr<StageRows> ReadServerStages(const std::vector<std::string>& metrics_files) {
  StageRows sum;
  for (const std::string& path : metrics_files) {
    try {
      std::ifstream file(path);
      const auto rows = ParseStages(Json::parse(file).value("stages", Json::object()).dump());
      if (!rows.ok()) return rows.status();
      AddStages(*rows, &sum);
    } catch (const Json::exception& error) {
      return absl::InternalError(absl::StrFormat("%s: %s", path, error.what()));
    }
  }
  return sum;
}

std::string JobStagesText(const JobStages& stages) {
  const std::string table = StageTable({{"workers", stages.workers}, {"servers", stages.servers}});
  return table.empty() ? "" : "\n" + table;
}

std::string JobStagesJson(const JobStages& stages) {
  return Json({{"worker", Json::parse(StagesJson(stages.workers))},
               {"server", Json::parse(StagesJson(stages.servers))}})
      .dump();
}

}  // namespace bdn::cli
