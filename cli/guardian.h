#ifndef BANDONEON_CLI_GUARDIAN_H_
#define BANDONEON_CLI_GUARDIAN_H_

#include <functional>
#include <string>

namespace bdn::cli {

// Runs `body` in a child process, the guardian, and returns its result (128 + the signal if it was
// killed), or 1 if the directory or the guardian could not be made, which standard error says.
// `body` gets a private temporary directory, which is removed afterwards, and supervises processes
// by a ProcessGroup. The signals of SupervisedSignals, except SIGCHLD, that come for this process
// are passed on to the guardian.
//
// Each of the two processes cleans up after the other. A guardian whose parent was killed gets
// SIGUSR2, at which `body` must end everything at once. When the guardian is killed, this process
// inherits its children, and ends them. So nothing stays behind when either of them gets SIGKILL.
//
// REQUIRES: no other thread runs in this process.
int RunGuarded(const std::function<int(const std::string& directory)>& body);

}  // namespace bdn::cli

#endif  // BANDONEON_CLI_GUARDIAN_H_
