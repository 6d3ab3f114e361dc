#ifndef BANDONEON_COMMON_BASE_CONFIG_H_
#define BANDONEON_COMMON_BASE_CONFIG_H_

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/nearest_name.h"

namespace bdn {

// One setting of a process, read from a flag (--lease-timeout) or a variable of the environment
// (BANDONEON_LEASE_TIMEOUT).
struct Setting {
  const char* name;           // "lease-timeout"
  const char* default_value;  // "" where there is none
  const char* help;           // one line, with the unit and an example
  bool secret = false;        // never printed
};

using Environment = std::map<std::string, std::string>;
// Returns this process's variables that start with BANDONEON_. Settings are read from the
// environment here only.
Environment ReadEnvironment();
// Returns one variable by its full name, "" where it is not set: for torchrun's RANK and the like.
std::string ReadVariable(const char* name);

// The settings of one process: defaults, overridden by the environment, overridden by flags.
// Immutable; thread-safe. An unknown or malformed setting is InvalidArgument that names it, and the
// nearest known name.
class Config {
 public:
  // Reads the settings. `args` are flags without the program's name: --name=value, --name value, or
  // --name for true. `elsewhere` names settings of other processes, which the environment may hold.
  static absl::StatusOr<Config> Load(std::span<const Setting> settings,
                                     std::span<const std::string> args,
                                     const Environment& environment,
                                     std::span<const Setting> elsewhere = {});

  // REQUIRES for all of these: `name` is one of the settings.
  const std::string& Text(std::string_view name) const;
  bool IsSet(std::string_view name) const;  // true where the environment or a flag gave it
  absl::StatusOr<int64_t> Int(std::string_view name, int64_t least, int64_t most) const;
  absl::StatusOr<bool> Bool(std::string_view name) const;
  absl::StatusOr<absl::Duration> Duration(std::string_view name) const;  // "500ms", "5s", "2m"
  absl::StatusOr<uint64_t> Bytes(std::string_view name) const;           // "65536", "64KiB", "4MiB"
  // Reads bits a second, such as "200mbit" or "1gbit", and returns bytes a second; "" and "0" are
  // 0, for no limit.
  absl::StatusOr<double> Rate(std::string_view name) const;

  // Returns the settings that the environment or a flag gave, without secrets, by name.
  std::vector<std::pair<std::string, std::string>> Given() const;
  // Returns lines of "name = value (source)"; the value of a secret that is set is hidden.
  std::string ToString() const;
  static std::string Help(std::span<const Setting> settings);

 private:
  struct Value {
    std::string text;
    const char* source;  // "default", "environment", "flag"
    bool secret = false;
  };
  void Set(std::string_view name, std::string text, const char* source);
  absl::Status Bad(std::string_view name, std::string_view expected) const;
  const Value& Find(std::string_view name) const;

  std::map<std::string, Value, std::less<>> values_;
};

// Turns "200mbit" into 25e6 bytes a second. InvalidArgument says which form is expected.
absl::StatusOr<double> ParseRate(std::string_view text);
absl::StatusOr<uint64_t> ParseBytes(std::string_view text);

}  // namespace bdn

#endif  // BANDONEON_COMMON_BASE_CONFIG_H_
