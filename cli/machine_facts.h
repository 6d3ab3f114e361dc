#ifndef BANDONEON_CLI_MACHINE_FACTS_H_
#define BANDONEON_CLI_MACHINE_FACTS_H_

#include <string>

#include "cli/doctor_checks.h"

namespace bdn::cli {

// Gathers the facts of this machine. Runs the server beside this program for its version, loads the
// library with which daemons serve HTTP, and opens the driver of GPUs.
MachineFacts GatherMachineFacts();

// Gathers the facts of the directory of a journal, and makes nothing.
JournalFacts GatherJournalFacts(const std::string& directory);

}  // namespace bdn::cli

#endif  // BANDONEON_CLI_MACHINE_FACTS_H_
