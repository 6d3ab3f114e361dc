#ifndef BANDONEON_CLI_OWN_COMMAND_H_
#define BANDONEON_CLI_OWN_COMMAND_H_

#include <chrono>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace bdn::cli {

// The end of a command that was run by this program.
struct CommandEnd {
  int status = 0;  // as of waitpid
  bool by_limit = false;
  int by_signal = 0;  // the signal that came for this process, and ended it; 0: none did

  // Returns the exit code; 128 + the signal where one ended it.
  int code() const;
};

// Runs this program again, with other arguments (the first is its name), without some variables of
// the environment and without input. What it prints goes to standard error. Blocks until it has
// ended. After `limit`, unless that is 0, and when SIGINT or SIGTERM comes for this process, it
// gets SIGTERM. REQUIRES: no other thread runs in this process.
absl::StatusOr<CommandEnd> RunOwnCommand(const std::vector<std::string>& argv,
                                         std::span<const char* const> without,
                                         std::chrono::milliseconds limit);

}  // namespace bdn::cli

#endif  // BANDONEON_CLI_OWN_COMMAND_H_
