#ifndef BANDONEON_CLI_COMMANDS_H_
#define BANDONEON_CLI_COMMANDS_H_

#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cli/command_flags.h"
#include "cli/process_group.h"

// The commands: each gets the arguments behind its name and returns the exit status of the process.

namespace bdn::cli {

using Arguments = std::span<const std::string>;

// What a command returns when its arguments are wrong.
inline constexpr int kUsage = 2;

int RunCommand(Arguments args);
// bandoneon-scheduler, bandoneon-server and bandoneon-worker, in place of this program.
int SchedulerCommand(Arguments args);
int ServerCommand(Arguments args);
int WorkerCommand(Arguments args);
int StatusCommand(Arguments args);
int DoctorCommand(Arguments args);
int RecipesCommand(Arguments args);
int BenchPushPullCommand(Arguments args);
int BenchIdleCommand(Arguments args);
int BenchCodecsCommand(Arguments args);
int CertsInitCommand(Arguments args);
int CertsIssueCommand(Arguments args);
int CertsShowCommand(Arguments args);
// Worker processes of the benchmarks, started by the first two of them.
int BenchWorkerCommand(Arguments args);
int IdleWorkerCommand(Arguments args);

// Prints "bandoneon COMMAND: message" to standard error and returns kUsage.
int UsageError(const std::string& command, const absl::Status& status);
// Whether help is asked for: then it was printed.
bool PrintedHelp(Arguments args, const std::string& usage, std::span<const Flag> flags,
                 const std::string& examples);
// Codec specs, link and NAME=VALUE settings of `flags` as variables of every process of a job,
// checked as far as it can be before anything runs. InvalidArgument names what is wrong.
absl::StatusOr<Variables> JobSettings(const CommandFlags& flags);
// Adds what --provider says of the fabric. Where all processes are `local`, one over TCP is reached at
// loopback alone, unless a setting says otherwise.
void AddFabricProvider(const CommandFlags& flags, bool local, Variables* settings);
// The settings with log level warning, unless they or the environment say another.
Variables QuietUnlessAsked(Variables settings);
// The scheduler's status, as bdn_status_json has it.
absl::StatusOr<std::string> AskScheduler(const std::vector<std::string>& settings,
                                         double timeout_seconds);
// The last failure of the C API on this thread.
absl::Status LastError(int code);

}  // namespace bdn::cli

#endif  // BANDONEON_CLI_COMMANDS_H_
