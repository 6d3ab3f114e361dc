#include "cli/job_memory.h"

#include <fstream>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace bdn::cli {
namespace {

using Json = nlohmann::ordered_json;

// The names of the servers' gauges, without "bytes_".
constexpr const char* kPurposes[] = {"weights", "replicas",  "moments",   "residuals",
                                     "sums",    "waiting",   "replies",   "values",
                                     "rows",    "held_most", "pool_used", "pool_idle"};

}  // namespace

absl::StatusOr<std::vector<std::pair<std::string, double>>> ReadPurposes(
    const std::vector<std::string>& metrics_files, double parameters) {
  std::vector<std::pair<std::string, double>> purposes;
  for (const char* purpose : kPurposes) {
    double bytes = 0;
    for (const std::string& path : metrics_files) {
      try {
        std::ifstream file(path);
        bytes += Json::parse(file).at(absl::StrCat("bytes_", purpose)).get<double>();
      } catch (const Json::exception& error) {
        return absl::InternalError(absl::StrFormat("%s: %s", path, error.what()));
      }
    }
    purposes.emplace_back(purpose, bytes / parameters);
  }
  return purposes;
}

std::string MemoryText(const JobMemory& memory) {
  std::string purposes;
  for (const auto& [name, bytes] : memory.server_purposes) {
    // Less would be printed as 0.00.
    if (bytes >= 0.005) absl::StrAppendFormat(&purposes, ", %s %.2f", name, bytes);
  }
  return absl::StrFormat(
      "bytes held a parameter %7.2f servers, %.2f a worker, by resident size\n"
      "the servers count      %s\n",
      memory.server_resident, memory.worker_resident,
      purposes.empty() ? "nothing" : purposes.substr(2));
}

std::string MemoryJson(const JobMemory& memory) {
  Json counted = Json::object();
  for (const auto& [name, bytes] : memory.server_purposes) counted[name] = bytes;
  return Json({{"server_resident", memory.server_resident},
               {"worker_resident", memory.worker_resident},
               {"server_counted", counted}})
      .dump();
}

}  // namespace bdn::cli
