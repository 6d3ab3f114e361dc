#ifndef BANDONEON_CLI_PYTHON_STACK_H_
#define BANDONEON_CLI_PYTHON_STACK_H_

#include <cstdint>
#include <string>

#include "absl/time/time.h"

namespace bdn::cli {

// The answer of a process that was asked for its Python stack. One of the two texts is empty.
struct PythonStack {
  // The main thread's stack as faulthandler writes it, the latest call first. At most 64 KiB,
  // free of control characters but for ends of lines.
  std::string text;
  // Why there is none, as the end of a sentence about the process: "it has ended".
  std::string why_not;
};

// Asks a process of this machine for its Python stack, and waits so long for it. A process shows
// by a descriptor named bandoneon-stack-NUMBER that it answers to the signal of that number; no
// other process is sent anything. `known_to_live_ns` is a time of CLOCK_MONOTONIC at which the
// process that is meant lived: one that began later has only the same number.
PythonStack AskForPythonStack(int64_t pid, int64_t known_to_live_ns, absl::Duration patience);

// Returns the id of this machine's boot, by which a recording says where it was made; empty where
// the system tells none.
std::string BootId();

}  // namespace bdn::cli

#endif  // BANDONEON_CLI_PYTHON_STACK_H_
