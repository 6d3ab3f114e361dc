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

// A flag of a command: --name VALUE or --name=VALUE, or a switch where `value` is null.
struct Flag {
  const char* name;   // "workers"
  char letter;        // 'n' for -n, 0 for none
  const char* value;  // the name of its value in the help, "COUNT"
  const char* help;
};

// Returns "; did you mean 'status'?" where one of `known` is near to `word`, or is the only one
// that begins with it; else "".
std::string DidYouMean(std::string_view word, std::span<const std::string> known);

// The parsed command line of one command. Immutable, and so thread-safe.
class CommandFlags {
 public:
  // Parses the arguments behind the program and the command. All that follow "--" are command().
  // InvalidArgument names the flag that is unknown, lacks its value, or comes twice without being
  // one of `repeated`.
  static absl::StatusOr<CommandFlags> Parse(std::span<const Flag> flags,
                                            std::span<const std::string> args,
                                            std::span<const std::string_view> repeated = {});

  bool Has(std::string_view name) const;
  std::string Text(std::string_view name, std::string_view otherwise = "") const;
  std::vector<std::string> All(std::string_view name) const;
  // Returns a whole number. InvalidArgument names the flag and the range.
  absl::StatusOr<int64_t> Int(std::string_view name, int64_t otherwise, int64_t least,
                              int64_t most) const;
  // Returns a duration such as "500ms", "5s" or "2m". InvalidArgument names the flag.
  absl::StatusOr<std::chrono::milliseconds> Duration(std::string_view name,
                                                     std::chrono::milliseconds otherwise) const;
  const std::vector<std::string>& command() const { return command_; }

  // Returns the lines of the help, one a flag.
  static std::string Help(std::span<const Flag> flags);

 private:
  std::map<std::string, std::vector<std::string>, std::less<>> values_;
  std::vector<std::string> command_;
};

}  // namespace bdn::cli

#endif  // BANDONEON_CLI_COMMAND_FLAGS_H_
