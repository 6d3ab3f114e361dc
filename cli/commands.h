#ifndef BANDONEON_CLI_COMMANDS_H_
#define BANDONEON_CLI_COMMANDS_H_

#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cli/command_flags.h"
#include "cli/process_group.h"
#include "worker/c_api/bandoneon.h"

// The commands. Each gets the arguments behind its name and returns the exit code of the process.

namespace bdn::cli {

using Arguments = std::span<const std::string>;

// The exit code of a command whose arguments are wrong.
inline constexpr int kUsage = 2;

int RunCommand(Arguments args);
// These three run a daemon (bandoneon-scheduler, bandoneon-server, bandoneon-worker) in place of
// this program.
int SchedulerCommand(Arguments args);
int ServerCommand(Arguments args);
int WorkerCommand(Arguments args);
int StatusCommand(Arguments args);
int DoctorCommand(Arguments args);
int CheckCommand(Arguments args);
int RecipesCommand(Arguments args);
int RowsExportCommand(Arguments args);
int RowsStatCommand(Arguments args);
int BenchPushPullCommand(Arguments args);
int BenchIdleCommand(Arguments args);
int BenchCodecsCommand(Arguments args);
int CertsInitCommand(Arguments args);
int CertsIssueCommand(Arguments args);
int CertsShowCommand(Arguments args);
int TraceDumpCommand(Arguments args);
int TraceMergeCommand(Arguments args);
int TraceExplainCommand(Arguments args);
int TraceHangCommand(Arguments args);
int ReplayCommand(Arguments args);
int TuneCommand(Arguments args);
// These two are the worker processes of the benchmarks, which start them.
int BenchWorkerCommand(Arguments args);
int IdleWorkerCommand(Arguments args);

// Prints "bandoneon COMMAND: message" to standard error and returns kUsage.
int UsageError(const std::string& command, const absl::Status& status);
// Prints the help if the arguments ask for it, and returns whether they do.
bool PrintedHelp(Arguments args, const std::string& usage, std::span<const Flag> flags,
                 const std::string& examples);
// Returns the variable that gives a process a setting: "BANDONEON_LOG_LEVEL" of "log-level".
std::string VariableName(const std::string& setting);
// Returns the codec specs, the link and the NAME=VALUE settings of `flags` as variables for every
// process of a job, checked as far as that can be done before anything runs. InvalidArgument names
// the part that is wrong.
absl::StatusOr<Variables> JobSettings(const CommandFlags& flags);
// Adds the fabric's provider that --provider names. Where all processes are `local`, a fabric over
// TCP is given loopback as its interface, unless a setting says otherwise.
void AddFabricProvider(const CommandFlags& flags, bool local, Variables* settings);
// Returns the settings with log level warning, unless they or the environment say another.
Variables QuietUnlessAsked(Variables settings);
// Returns the flags of a command that asks a scheduler, and behind them those of its secret and of
// certificates: token, token-file, tls-ca, tls-cert, tls-key and insecure.
std::vector<Flag> WithCredentials(std::span<const Flag> flags);
// Returns the settings that the flags of a scheduler give: scheduler, token, token-file, tls-ca,
// tls-cert, tls-key and insecure. The environment gives the others.
std::vector<std::string> SchedulerSettings(const CommandFlags& flags);
// Returns the advice to be shown beside a refusal; empty where there is none.
std::string TokenHint(const CommandFlags& flags, const absl::Status& refusal);
// Asks the scheduler for the job's status, which comes as bdn_status_json has it.
absl::StatusOr<std::string> AskScheduler(const std::vector<std::string>& settings,
                                         double timeout_seconds);
// Returns the statistics of a worker as bdn_stats_json has them; empty where there are none.
std::string StatsOf(bdn_worker* worker);
// Returns the last failure of the C API on this thread.
absl::Status LastError(int code);

}  // namespace bdn::cli

#endif  // BANDONEON_CLI_COMMANDS_H_
