#ifndef BANDONEON_CLI_MACHINE_SPEED_H_
#define BANDONEON_CLI_MACHINE_SPEED_H_

#include <string>

#include "cli/job_check.h"

namespace bdn::cli {

// Returns the machine's load average of the last minute; 0 where it cannot be read.
double LoadOfMachine();

// Measures this machine for about a second: memory, the codecs of a job, TCP on loopback. Rates are
// of CPU time, so that a program beside does not slow them. `load` is as before the check. What
// cannot be measured, as codecs where bandoneon-bench-roof is not installed, stays 0.
MachineFigures MeasureMachine(const std::string& push, const std::string& pull, double load);

}  // namespace bdn::cli

#endif  // BANDONEON_CLI_MACHINE_SPEED_H_
