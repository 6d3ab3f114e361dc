#ifndef BANDONEON_CLI_MACHINE_FACTS_H_
#define BANDONEON_CLI_MACHINE_FACTS_H_

#include "cli/doctor_checks.h"

namespace bdn::cli {

// Asks this machine, and runs the daemon beside this program for its version. Opens the driver of GPUs.
MachineFacts GatherMachineFacts();

}  // namespace bdn::cli

#endif  // BANDONEON_CLI_MACHINE_FACTS_H_
