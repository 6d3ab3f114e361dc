#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

#include "cli/commands.h"
#include "worker/c_api/bandoneon.h"

namespace bdn::cli {
namespace {

constexpr char kHelp[] =
    "usage: bandoneon COMMAND [options]\n\n"
    "  run              start a whole job on this machine\n"
    "  scheduler        the daemon of a job: bandoneon-scheduler\n"
    "  server           the daemon that sums: bandoneon-server\n"
    "  worker           the daemon that takes part for a host's processes: bandoneon-worker\n"
    "  status           show the nodes of a running job\n"
    "  doctor           say what is wrong with this machine, or the way to a job\n"
    "  check            a job's program that measures its links and machines before a training\n"
    "  recipes          list the recipes of bandoneon.torch: which setting for which network\n"
    "  trace dump       get the latest recordings of a job that runs, from its scheduler\n"
    "  trace merge      make one timeline of a job's recordings, for ui.perfetto.dev\n"
    "  trace explain    say where the time of a job's steps went, and why slow ones were slow\n"
    "  trace hang       say whom all wait for, in a job that runs or where its recordings end\n"
    "  replay           say what a step of a recorded job would take with other settings\n"
    "  tune             look for settings with which a recorded job's steps are faster\n"
    "  rows export      write a table of a checkpoint as arrays of NumPy\n"
    "  rows stat        show the tables of a checkpoint\n"
    "  certs init       make a job's certificate authority\n"
    "  certs issue      make a certificate for a scheduler, server, worker or observer\n"
    "  certs show       say what a certificate says\n"
    "  bench pushpull   measure exchanges\n"
    "  bench idle       measure what a job costs that does nothing\n"
    "  bench codecs     measure codecs alone\n\n"
    "  --version        print the version, and the GPUs that are there\n"
    "  -h, --help       this text; bandoneon COMMAND --help has each command's\n\n"
    "Examples:\n"
    "  bandoneon run -n 2 -s 2 -- python train.py\n"
    "  bandoneon status --scheduler 127.0.0.1:7000\n"
    "  bandoneon doctor --scheduler 127.0.0.1:7000\n"
    "  bandoneon bench pushpull --push 'ef(onebit)' --pull 'ef(onebit)' --json\n";

// A command of the table below.
struct Command {
  std::string_view name;
  int (*run)(Arguments);
};
constexpr Command kCommands[] = {
    {"run", RunCommand},
    {"scheduler", SchedulerCommand},
    {"server", ServerCommand},
    {"worker", WorkerCommand},
    {"status", StatusCommand},
    {"doctor", DoctorCommand},
    {"check", CheckCommand},
    {"recipes", RecipesCommand},
    {"trace dump", TraceDumpCommand},
    {"trace merge", TraceMergeCommand},
    {"trace explain", TraceExplainCommand},
    {"trace hang", TraceHangCommand},
    {"replay", ReplayCommand},
    {"tune", TuneCommand},
    {"rows export", RowsExportCommand},
    {"rows stat", RowsStatCommand},
    {"certs init", CertsInitCommand},
    {"certs issue", CertsIssueCommand},
    {"certs show", CertsShowCommand},
    {"bench pushpull", BenchPushPullCommand},
    {"bench idle", BenchIdleCommand},
    {"bench codecs", BenchCodecsCommand},
    // Not for people: these are the workers of the benchmarks.
    {"bench-worker", BenchWorkerCommand},
    {"idle-worker", IdleWorkerCommand},
};

// Returns the names of the commands for people, and the first words of those with two words.
std::vector<std::string> CommandNames() {
  std::vector<std::string> names = {"bench", "certs", "rows", "trace"};
  for (const Command& command : kCommands) {
    if (command.run != BenchWorkerCommand && command.run != IdleWorkerCommand) {
      names.emplace_back(command.name);
    }
  }
  return names;
}

int Main(const std::vector<std::string>& args) {
  if (args.empty() || args[0] == "--help" || args[0] == "-h" || args[0] == "help") {
    fputs(kHelp, args.empty() ? stderr : stdout);
    return args.empty() ? kUsage : 0;
  }
  if (args[0] == "--version") {
    char devices[4096] = "";
    const bool asked = bdn_describe_devices(nullptr, devices, sizeof(devices), nullptr) == BDN_OK;
    printf("bandoneon %s\n%s", bdn_version(), asked ? devices : "");
    return 0;
  }
  std::string name = args[0];
  size_t used = 1;
  if (name == "bench" || name == "certs" || name == "rows" || name == "trace") {
    if (args.size() == 1 || args[1] == "--help" || args[1] == "-h") {
      fputs(kHelp, args.size() == 1 ? stderr : stdout);
      return args.size() == 1 ? kUsage : 0;
    }
    name += " " + args[used++];
  }
  for (const Command& command : kCommands) {
    if (command.name == name) return command.run(Arguments(args).subspan(used));
  }
  fprintf(stderr, "bandoneon: unknown command '%s'%s\nSee bandoneon --help.\n", name.c_str(),
          DidYouMean(name, CommandNames()).c_str());
  return kUsage;
}

}  // namespace
}  // namespace bdn::cli

int main(int argc, char** argv) {
  return bdn::cli::Main(std::vector<std::string>(argv + 1, argv + argc));
}
