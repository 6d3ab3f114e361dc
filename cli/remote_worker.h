#ifndef BANDONEON_CLI_REMOTE_WORKER_H_
#define BANDONEON_CLI_REMOTE_WORKER_H_

#include <chrono>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/process_group.h"

// A worker on another machine, by ssh. Its command line there shows nothing but a small shell
// script: the directory, the variables, which may be secret, and the command come by its standard
// input, and behind these the names of signals, a line each. When the script ends, as it does with
// the connection, the command and its process group are ended.

namespace bdn::cli {

// A machine that workers run on.
struct RemoteHost {
  std::string destination;  // as ssh takes it: "host" or "user@host"
  int workers = 0;
};

// Parses "a:2,b:2"; a machine without a number has one worker. InvalidArgument names the part that
// is wrong.
absl::StatusOr<std::vector<RemoteHost>> ParseRemoteHosts(const std::string& text);
// Returns the address without the user: "a" for "user@a".
std::string HostOf(const RemoteHost& host);

// Returns the ssh command to run here. `options` are as those of ssh -o; `grace` is the time from
// SIGTERM to SIGKILL there.
std::vector<std::string> RemoteArgv(const RemoteHost& host, const std::vector<std::string>& options,
                                    std::chrono::milliseconds grace);
// Returns the input for the script to read first. Of variables that are given twice the last one
// counts. REQUIRES: IsVariableName of each.
std::string RemoteInput(const std::string& directory, const Variables& variables,
                        const std::vector<std::string>& command);
// Returns whether a shell takes the name: letters, digits and underscores, and no digit first.
bool IsVariableName(const std::string& name);
// Returns the part of this process's environment that a worker elsewhere needs: the paths of
// programs and modules, and all settings.
Variables HandedOver();

}  // namespace bdn::cli

#endif  // BANDONEON_CLI_REMOTE_WORKER_H_
