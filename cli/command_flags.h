#ifndef BANDONEON_CLI_COMMAND_FLAGS_H_
#define BANDONEON_CLI_COMMAND_FLAGS_H_

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace bdn::cli {

// One flag of a command: --name VALUE or --name=VALUE, or a switch where `value` is null.
struct Flag {
  const char* name;   // "workers"
  char letter;        // 'n' for -n, 0 for none
  const char* value;  // what the help calls its value, "COUNT"
  const char* help;
};

// "; did you mean 'status'?" where one of `known` is near to `word`, or is the only one that begins
// with it; else "".
std::string DidYouMean(std::string_view word, std::span<const std::string> known);

// The parsed command line of one command. Immutable; thread-safe.
class CommandFlags {
 public:
  // `args` without the program and the command. Everything behind "--" is command().
  // InvalidArgument names the flag that is unknown, lacks its value, or comes twice without being
  // one of `repeated`.
  static absl::StatusOr<CommandFlags> Parse(std::span<const Flag> flags,
                                            std::span<const std::string> args,
                                            std::span<const std::string_view> repeated = {});

  bool Has(std::string_view name) const;
  std::string Text(std::string_view name, std::string_view otherwise = "") const;
  std::vector<std::string> All(std::string_view name) const;
  // InvalidArgument names the flag and the range.
  absl::StatusOr<int64_t> Int(std::string_view name, int64_t otherwise, int64_t least,
                              int64_t most) const;
  // "500ms", "5s", "2m".
  absl::StatusOr<std::chrono::milliseconds> Duration(std::string_view name,
                                                     std::chrono::milliseconds otherwise) const;
  const std::vector<std::string>& command() const { return command_; }

  static std::string Help(std::span<const Flag> flags);

 private:
  std::map<std::string, std::vector<std::string>, std::less<>> values_;
  std::vector<std::string> command_;
};

}  // namespace bdn::cli

#endif  // BANDONEON_CLI_COMMAND_FLAGS_H_
