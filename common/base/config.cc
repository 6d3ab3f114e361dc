#include "common/base/config.h"

#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdlib>
#include <utility>

#include "absl/strings/numbers.h"
#include "common/base/status.h"

namespace bdn {
namespace {

constexpr std::string_view kPrefix = "BANDONEON_";

// Returns the variable of a setting: BANDONEON_LEASE_TIMEOUT for "lease-timeout".
std::string VariableName(std::string_view setting) {
  std::string name(kPrefix);
  for (const char c : setting) {
    name += c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  }
  return name;
}

// Returns "; did you mean X?", or nothing where no known word is near.
std::string Hint(std::string_view word, const std::vector<std::string>& known) {
  const std::string nearest = NearestName(word, known);
  return nearest.empty() ? std::string() : "; did you mean " + nearest + "?";
}

// Splits "200mbit" into 200 and "mbit". Returns false when the text does not start with a number.
bool SplitNumber(std::string_view text, double* number, std::string* unit) {
  size_t digits = 0;
  while (digits < text.size() &&
         (std::isdigit(static_cast<unsigned char>(text[digits])) != 0 || text[digits] == '.')) {
    ++digits;
  }
  if (!absl::SimpleAtod(absl::string_view(text.data(), digits), number)) return false;
  unit->clear();
  for (const char c : text.substr(digits)) {
    *unit += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return std::isfinite(*number) && *number >= 0;
}

}  // namespace

Environment ReadEnvironment() {
  Environment found;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view line(*entry);
    const size_t equals = line.find('=');
    if (equals == std::string_view::npos || line.substr(0, kPrefix.size()) != kPrefix) continue;
    found.emplace(line.substr(0, equals), line.substr(equals + 1));
  }
  return found;
}

std::string ReadVariable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::string() : std::string(value);
}

absl::StatusOr<Config> Config::Load(std::span<const Setting> settings,
                                    std::span<const std::string> args,
                                    const Environment& environment,
                                    std::span<const Setting> elsewhere) {
  Config config;
  std::vector<std::string> flags;
  std::vector<std::string> variables;
  for (const Setting& setting : settings) {
    config.values_[setting.name] = {setting.default_value, "default", setting.secret};
    flags.push_back(std::string("--") + setting.name);
    variables.push_back(VariableName(setting.name));
    const auto found = environment.find(variables.back());
    if (found != environment.end()) config.Set(setting.name, found->second, "environment");
  }
  for (const Setting& setting : elsewhere) variables.push_back(VariableName(setting.name));
  for (const auto& [name, unused] : environment) {
    if (std::find(variables.begin(), variables.end(), name) == variables.end()) {
      // The message leaves the value out: it may be a secret whose name is misspelt.
      return InvalidArgument("unknown setting in the environment: %s%s", name,
                             Hint(name, variables));
    }
  }
  for (size_t i = 0; i < args.size(); ++i) {
    const std::string& arg = args[i];
    const size_t equals = arg.find('=');
    const std::string flag = arg.substr(0, equals);
    if (std::find(flags.begin(), flags.end(), flag) == flags.end()) {
      return InvalidArgument("unknown flag %s%s", flag, Hint(flag, flags));
    }
    std::string value = "true";
    if (equals != std::string::npos) {
      value = arg.substr(equals + 1);
      // A flag that follows is no value, so `--name --other` means true.
    } else if (i + 1 < args.size() && args[i + 1].substr(0, 2) != "--") {
      value = args[++i];
    }
    config.Set(flag.substr(2), value, "flag");
  }
  return config;
}

void Config::Set(std::string_view name, std::string text, const char* source) {
  Value& value = values_.find(name)->second;
  value.text = std::move(text);
  value.source = source;
}

const Config::Value& Config::Find(std::string_view name) const {
  return values_.find(name)->second;
}
const std::string& Config::Text(std::string_view name) const { return Find(name).text; }
bool Config::IsSet(std::string_view name) const {
  return std::string_view(Find(name).source) != "default";
}

absl::Status Config::Bad(std::string_view name, std::string_view expected) const {
  const Value& value = Find(name);
  // A secret's value stays out of the error, which goes into logs.
  return InvalidArgument("setting %s is '%s' (from the %s): expected %s", std::string(name),
                         value.secret ? "(hidden)" : value.text, value.source,
                         std::string(expected));
}

absl::StatusOr<int64_t> Config::Int(std::string_view name, int64_t least, int64_t most) const {
  int64_t number;
  if (!absl::SimpleAtoi(Text(name), &number) || number < least || number > most) {
    return Bad(name, absl::StrFormat("a whole number from %d to %d", least, most));
  }
  return number;
}

absl::StatusOr<bool> Config::Bool(std::string_view name) const {
  bool value;
  if (!absl::SimpleAtob(Text(name), &value)) return Bad(name, "true or false");
  return value;
}

absl::StatusOr<absl::Duration> Config::Duration(std::string_view name) const {
  absl::Duration value;
  if (!absl::ParseDuration(Text(name), &value) || value < absl::ZeroDuration()) {
    return Bad(name, "a duration such as 500ms, 5s or 2m");
  }
  return value;
}

absl::StatusOr<uint64_t> Config::Bytes(std::string_view name) const {
  auto value = ParseBytes(Text(name));
  if (!value.ok()) return Bad(name, "bytes such as 65536, 64KiB or 4MiB");
  return value;
}

absl::StatusOr<double> Config::Rate(std::string_view name) const {
  auto value = ParseRate(Text(name));
  if (!value.ok()) return Bad(name, "a rate in bits a second such as 200mbit or 1gbit");
  return value;
}

std::vector<std::pair<std::string, std::string>> Config::Given() const {
  std::vector<std::pair<std::string, std::string>> given;
  for (const auto& [name, value] : values_) {
    if (!value.secret && IsSet(name)) given.emplace_back(name, value.text);
  }
  return given;
}

std::string Config::ToString() const {
  std::string text;
  for (const auto& [name, value] : values_) {
    const bool hidden = value.secret && !value.text.empty();
    text += absl::StrFormat("%s = %s (%s)\n", name, hidden ? "(hidden)" : value.text, value.source);
  }
  return text;
}

std::string Config::Help(std::span<const Setting> settings) {
  std::string text;
  for (const Setting& setting : settings) {
    const std::string shown = std::string(setting.default_value).empty()
                                  ? std::string()
                                  : absl::StrFormat(" [%s]", setting.default_value);
    text += absl::StrFormat("  --%-22s %s%s\n", setting.name, setting.help, shown);
  }
  return text + "Each is also read from the environment: --some-name as BANDONEON_SOME_NAME.\n";
}

absl::StatusOr<double> ParseRate(std::string_view text) {
  if (text.empty()) return 0.0;
  double number;
  std::string unit;
  if (SplitNumber(text, &number, &unit)) {
    if (number == 0) return 0.0;
    if (unit == "bit") return number / 8;
    if (unit == "kbit") return number * 1e3 / 8;
    if (unit == "mbit") return number * 1e6 / 8;
    if (unit == "gbit") return number * 1e9 / 8;
  }
  return InvalidArgument("rate '%s': expected bits a second such as 200mbit or 1gbit",
                         std::string(text));
}

absl::StatusOr<uint64_t> ParseBytes(std::string_view text) {
  double number;
  std::string unit;
  if (SplitNumber(text, &number, &unit)) {
    const double scale = unit.empty() || unit == "b" ? 1
                         : unit == "kib"             ? 0x1p10
                         : unit == "mib"             ? 0x1p20
                         : unit == "gib"             ? 0x1p30
                                                     : 0;
    const double bytes = number * scale;
    if (scale > 0 && bytes < 0x1p62 && bytes == std::floor(bytes))
      return static_cast<uint64_t>(bytes);
  }
  return InvalidArgument("size '%s': expected bytes such as 65536, 64KiB or 4MiB",
                         std::string(text));
}

}  // namespace bdn
