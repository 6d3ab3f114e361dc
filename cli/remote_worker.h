#ifndef BANDONEON_CLI_REMOTE_WORKER_H_
#define BANDONEON_CLI_REMOTE_WORKER_H_

#include <chrono>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/process_group.h"

// A worker on another host, by ssh. Its command line there says nothing but a small shell script; the
// directory, the variables, which may be secret, and the command come by its standard input. What then
// comes by it are names of signals, a line each. When it ends, as it does with the connection, the
// command and its process group are ended.

namespace bdn::cli {

struct RemoteHost {
  std::string destination;  // as ssh takes it: "host" or "user@host"
  int workers = 0;
};

// Of "a:2,b:2"; a host without a number has one worker. InvalidArgument names the part that is wrong.
absl::StatusOr<std::vector<RemoteHost>> ParseRemoteHosts(const std::string& text);
// "user@a" -> "a".
std::string HostOf(const RemoteHost& host);

// The command that runs here. `options` are as of ssh -o; `grace` is from SIGTERM to SIGKILL there.
std::vector<std::string> RemoteArgv(const RemoteHost& host, const std::vector<std::string>& options,
                                    std::chrono::milliseconds grace);
// What it is to read first. Of variables that are there twice the last one counts.
// REQUIRES: IsVariableName of each.
std::string RemoteInput(const std::string& directory, const Variables& variables,
                        const std::vector<std::string>& command);
// Whether a shell takes it: letters, digits and underscores.
bool IsVariableName(const std::string& name);
// What of this process's environment a worker elsewhere needs: where programs and modules lie, and all
// settings.
Variables HandedOver();

}  // namespace bdn::cli

#endif  // BANDONEON_CLI_REMOTE_WORKER_H_
