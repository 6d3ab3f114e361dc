#ifndef BANDONEON_CLI_GUARDIAN_H_
#define BANDONEON_CLI_GUARDIAN_H_

#include <functional>
#include <string>

namespace bdn::cli {

// Runs `body` in a child process, the guardian, and returns what it returned (128 + the signal when
// it was killed). `body` gets a private temporary directory, gone afterwards, and supervises
// processes by a ProcessGroup. Signals that come for this process are passed on to the guardian.
//
// Of the two processes each cleans up after the other: a guardian whose parent was killed gets
// SIGUSR2, at which `body` must end everything at once; when the guardian is killed, this process
// inherits what it left, and ends that. So whichever of them gets SIGKILL, nothing stays behind.
//
// REQUIRES: no other thread runs in this process.
int RunGuarded(const std::function<int(const std::string& directory)>& body);

}  // namespace bdn::cli

#endif  // BANDONEON_CLI_GUARDIAN_H_
