#include "cli/plan_file.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>

#include "absl/strings/str_format.h"

namespace bdn::cli {
namespace {

constexpr int kVersion = 1;
constexpr size_t kMostBytes = 64 << 20;
constexpr const char* kNames[] = {
    "push", "pull", "servers", "partition-bytes", "fusion-bytes", "max-bytes-in-flight"};

absl::Status Bad(const std::string& why) { return absl::InvalidArgumentError(why); }

}  // namespace

std::string PlanText(const PlanSettings& settings, const PlanFigures& figures) {
  nlohmann::ordered_json json = {
      {"version", kVersion},
      {"settings", nlohmann::ordered_json::object()},
      {"recorded_step_ms", figures.recorded_ms},
      {"predicted_step_ms", figures.predicted_ms},
      {"interval_ms", {figures.predicted_low_ms, figures.predicted_high_ms}}};
  for (const auto& [name, value] : settings) json["settings"][name] = value;
  if (figures.measured_ms) json["measured_step_ms"] = *figures.measured_ms;
  if (figures.measured_recorded_ms) {
    json["measured_recorded_step_ms"] = *figures.measured_recorded_ms;
  }
  if (!figures.notes.empty()) json["notes"] = figures.notes;
  return json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

absl::StatusOr<PlanSettings> ParsePlan(std::string_view text) {
  const auto json = nlohmann::json::parse(text.begin(), text.end(), nullptr, false);
  if (!json.is_object()) return Bad("it is no JSON object");
  const auto version = json.find("version");
  if (version == json.end() || !version->is_number_integer()) return Bad("it has no version");
  if (version->get<int64_t>() != kVersion) {
    return Bad(absl::StrFormat("it is of version %d, and this program knows version %d",
                               version->get<int64_t>(), kVersion));
  }
  const auto settings = json.find("settings");
  if (settings == json.end() || !settings->is_object()) return Bad("it has no settings");
  PlanSettings plan;
  for (const auto& [name, value] : settings->items()) {
    if (std::find(std::begin(kNames), std::end(kNames), name) == std::end(kNames)) {
      return Bad(absl::StrFormat("it sets '%s', which plans do not", name));
    }
    if (!value.is_string()) return Bad(absl::StrFormat("its setting '%s' is no text", name));
    plan.emplace_back(name, value.get<std::string>());
  }
  return plan;
}

absl::StatusOr<std::string> ReadWholeFile(const std::string& path) {
  const std::unique_ptr<FILE, int (*)(FILE*)> file(fopen(path.c_str(), "re"), fclose);
  const auto failed = [&path] {
    return absl::NotFoundError(absl::StrFormat("%s cannot be read: %s", path, strerror(errno)));
  };
  if (file == nullptr) return failed();
  std::string text;
  char chunk[65536];
  for (size_t size; (size = fread(chunk, 1, sizeof(chunk), file.get())) > 0;) {
    text.append(chunk, size);
    if (text.size() > kMostBytes) return Bad(path + " is longer than 64 MiB");
  }
  if (ferror(file.get()) != 0) return failed();
  return text;
}

}  // namespace bdn::cli
