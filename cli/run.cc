#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <string_view>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/commands.h"
#include "cli/guardian.h"
#include "cli/local_job.h"
#include "cli/own_command.h"
#include "cli/plan_file.h"
#include "cli/tcp_probe.h"
#include "replay/replay_settings.h"
#include "trace/hang_report.h"
#include "trace/job_trace.h"

namespace bdn::cli {
namespace {

constexpr Flag kFlags[] = {
    {"workers", 'n', "COUNT", "worker processes, each runs COMMAND [1]"},
    {"hosts", 0, "COUNT", "emulate so many hosts, each with a bandoneon-worker for its processes"},
    {"procs-per-host", 0, "COUNT", "worker processes of each host; instead of --workers [1]"},
    {"servers", 's', "COUNT", "server processes [1]"},
    {"ssh", 0, "HOST:COUNT,...", "run so many workers on each host by ssh; instead of --workers"},
    {"ssh-option", 0, "NAME=VALUE", "an option of ssh, as of its -o, e.g. Port=2222; repeatable"},
    {"advertise", 0, "ADDRESS", "of this host, for those hosts [by which the first is reached]"},
    {"push", 0, "SPEC", "codec of gradients to the servers [none]"},
    {"pull", 0, "SPEC", "codec of sums back to the workers [none]"},
    {"link", 0, "RATE", "pretend that the network is this fast, e.g. 200mbit"},
    {"transport", 0, "NAME", "auto, shm, rdma or network [auto]"},
    {"provider", 0, "NAME", "libfabric's, for --transport rdma, e.g. verbs;ofi_rxm or tcp;ofi_rxm"},
    {"http-listen", 0, "HOST:PORT", "a page for browsers that shows the job, e.g. 127.0.0.1:0"},
    {"plan", 0, "FILE", "settings that `bandoneon tune` has written; options and --set go before"},
    {"check", 0, nullptr,
     "measure links and machines first; start nothing where that finds an error"},
    {"seed", 0, "NUMBER", "seed of every random draw of the run"},
    {"set", 0, "NAME=VALUE", "any other setting of scheduler, servers and workers; repeatable"},
    {"min-workers", 0, "COUNT", "the job goes on while so many workers are left; 0: all [0]"},
    {"restarts", 0, "COUNT", "start processes of the job again that a signal ended, so often [0]"},
    {"linger", 0, "TIME", "after one process failed the others may end on their own so long [6s]"},
    {"grace", 0, "TIME", "from SIGTERM to SIGKILL [5s]"},
};

constexpr char kUsageText[] =
    "usage: bandoneon run -n WORKERS -s SERVERS [options] -- COMMAND [ARGUMENT ...]\n"
    "       bandoneon run --hosts HOSTS --procs-per-host WORKERS -s SERVERS [options] -- COMMAND "
    "...\n"
    "       bandoneon run --ssh HOST:WORKERS,... -s SERVERS [options] -- COMMAND [ARGUMENT ...]\n"
    "\n"
    "Starts a scheduler, servers and workers on this machine, tags each one's lines, passes SIGINT "
    "and\n"
    "SIGTERM on, and ends all when one fails; with --min-workers=N a worker that a signal "
    "ends is not the\n"
    "end while N are left, and neither is a server while another runs, unless --set replay-steps=0 "
    "says so.\n"
    "Returns 0 when all workers that were not lost did, else the code of "
    "the\n"
    "process that failed first (128 + N when signal N ended it, 1 when it did not end by itself); "
    "the last\n"
    "line says which that was and why, and of the others' errors what only repeats it is left out. "
    "The only\n"
    "worker of a job reads this command's input, several have none. The job has a secret of its "
    "own, made\n"
    "anew, unless BANDONEON_TOKEN or BANDONEON_TOKEN_FILE says another. Workers find the job by "
    "BANDONEON_...\n"
    "variables; RANK, WORLD_SIZE, MASTER_ADDR and the others of torch.distributed are set as "
    "well.\n"
    "\n"
    "With --restarts=N the scheduler keeps a journal in the job's private directory. When a signal "
    "ends it,\n"
    "it is started again at its address and goes on with the job; servers and workers wait for it. "
    "A server\n"
    "that a signal ends is started again, too, and joins the job that runs. So is a worker that a "
    "signal or\n"
    "status 75 ends and without which the job goes on by min-workers: after 1 s, the next times "
    "after up to\n"
    "30 s; but not at the end of the job. With --hosts a host's daemon and its processes are\n"
    "lost, and started again, together. It has TORCHELASTIC_RESTART_COUNT then, and its program\n"
    "must know how to come back. These are N times in all. The last line says what was started\n"
    "again, how often and why.\n"
    "\n"
    "With --ssh the scheduler and the servers are here, and workers there: in this directory, "
    "which all hosts\n"
    "share, with this PATH, PYTHONPATH, LD_LIBRARY_PATH and BANDONEON_... variables, and no "
    "terminal. Keys must\n"
    "be set up: ssh asks nothing. Other hosts are served only with --set tls-ca=, tls-cert= and "
    "tls-key=, or,\n"
    "on a network that nobody else reads, --set insecure=true. When a connection ends, so do its "
    "workers.\n"
    "\n"
    "With --check a job with the same settings runs `bandoneon check` first: each pair of a worker "
    "and a\n"
    "server, all at once, each machine. The program is started unless that ends with an error, "
    "whose code this\n"
    "command then returns. With --hosts each host has one worker in the check.\n";

constexpr char kExamples[] =
    "  bandoneon run -n 2 -s 2 -- python train.py\n"
    "  bandoneon run -n 2 -s 1 --push 'ef(onebit(block=256))' --pull 'ef(onebit(block=256))' \\\n"
    "    --link 200mbit -- python train.py --epochs 3\n"
    "  bandoneon run -n 2 -s 1 --http-listen 127.0.0.1:0 -- python train.py   # with a page for "
    "browsers\n"
    "  bandoneon run --hosts 2 --procs-per-host 2 -s 2 -- python train.py\n"
    "  bandoneon run -n 2 -s 2 --restarts 3 -- python train.py   # survives lost daemons\n"
    "  bandoneon run -n 3 -s 2 --min-workers=1 --restarts 9 -- ./train   # and lost workers\n"
    "  bandoneon run --ssh a:2,b:2 -s 2 --set insecure=true -- python train.py\n"
    "  bandoneon run --ssh a:2,b:2 -s 2 --set insecure=true --check -- python train.py\n"
    "  bandoneon run --plan plan.json -n 4 -- python train.py   # as `bandoneon tune` has found\n"
    "  bandoneon run -n 4 -s 2 --seed 7 --set threads=1 --set lease-timeout=10s -- ./train\n";

constexpr int64_t kMostPerHost = 1024;
constexpr int64_t kMostRestarts = 1'000'000;
// So much of a failed job's recordings is read to say whom it waited for.
constexpr int64_t kRecordedBeforeTheEndNs = 60'000'000'000;

// Returns a setting of the job: what --set says, else the environment; empty where neither does.
std::string SettingOf(const Variables& settings, const std::string& variable) {
  const char* exported = getenv(variable.c_str());
  std::string text = exported == nullptr ? "" : exported;
  for (const auto& [name, value] : settings) {
    if (name == variable) text = value;
  }
  return text;
}

absl::Status ReadRemote(const CommandFlags& flags, JobOptions* options) {
  auto remote = ParseRemoteHosts(flags.Text("ssh"));
  if (!remote.ok()) return remote.status();
  options->remote = *std::move(remote);
  options->ssh_options = flags.All("ssh-option");
  options->workers = 0;
  for (const RemoteHost& host : options->remote) options->workers += host.workers;
  if (flags.Has("advertise")) {
    options->advertise = flags.Text("advertise");
    return absl::OkStatus();
  }
  // The address by which the first machine is reached; the port plays no part in it.
  const auto addresses = Resolve({HostOf(options->remote[0]), "22"});
  auto own = addresses.ok() ? LocalAddressTowards(addresses->front())
                            : absl::StatusOr<std::string>(addresses.status());
  if (!own.ok()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("which address of this host do the others reach? %s: say --advertise",
                        std::string(own.status().message())));
  }
  options->advertise = *std::move(own);
  return absl::OkStatus();
}

// Adds the settings of --plan that no option sets; they go before the environment. Returns the
// number of servers that it says, which is 1 otherwise.
absl::StatusOr<int> AddPlan(const CommandFlags& flags, Variables* settings) {
  if (!flags.Has("plan")) return 1;
  const std::string path = flags.Text("plan");
  const auto text = ReadWholeFile(path);
  if (!text.ok()) return text.status();
  const auto plan = ParsePlan(*text);
  if (!plan.ok()) {
    return absl::InvalidArgumentError(absl::StrFormat("%s is no plan of `bandoneon tune`: %s", path,
                                                      std::string(plan.status().message())));
  }
  int servers = 1;
  ReplaySettings checked;
  for (const auto& [name, value] : *plan) {
    const absl::Status sound = AddReplaySetting(absl::StrCat(name, "=", value), &checked);
    if (!sound.ok()) {
      return absl::InvalidArgumentError(
          absl::StrFormat("%s: %s", path, std::string(sound.message())));
    }
    if (name == "servers") {
      servers = static_cast<int>(*checked.servers);
      continue;
    }
    const std::string variable = VariableName(name);
    const auto same = [&](const auto& other) { return other.first == variable; };
    if (std::any_of(settings->begin(), settings->end(), same)) continue;
    settings->emplace_back(variable, value);
  }
  return servers;
}

absl::StatusOr<JobOptions> ReadOptions(const CommandFlags& flags) {
  JobOptions options;
  const auto workers = flags.Int("workers", 1, 1, 4096);
  if (!workers.ok()) return workers.status();
  const auto servers = flags.Int("servers", 1, 1, 4096);
  if (!servers.ok()) return servers.status();
  const auto seed = flags.Int("seed", 0, 0, INT64_MAX);
  if (!seed.ok()) return seed.status();
  const auto restarts = flags.Int("restarts", 0, 0, kMostRestarts);
  if (!restarts.ok()) return restarts.status();
  const auto linger = flags.Duration("linger", options.linger);
  if (!linger.ok()) return linger.status();
  const auto grace = flags.Duration("grace", options.grace);
  if (!grace.ok()) return grace.status();
  auto settings = JobSettings(flags);
  if (!settings.ok()) return settings.status();
  auto planned_servers = AddPlan(flags, &*settings);
  if (!planned_servers.ok()) return planned_servers.status();
  if (flags.Has("transport")) {
    settings->emplace_back("BANDONEON_TRANSPORT", flags.Text("transport"));
  }
  if (flags.Has("min-workers")) {
    settings->emplace_back("BANDONEON_MIN_WORKERS", flags.Text("min-workers"));
  }
  AddFabricProvider(flags, /*local=*/!flags.Has("ssh"), &*settings);
  if (flags.command().empty()) {
    return absl::InvalidArgumentError("no command to run: put it behind --");
  }
  const auto hosts = flags.Int("hosts", 0, 0, 4096);
  if (!hosts.ok()) return hosts.status();
  const auto of_host = flags.Int("procs-per-host", 1, 1, kMostPerHost);
  if (!of_host.ok()) return of_host.status();
  if (*hosts > 0 && !flags.Text("workers").empty()) {
    return absl::InvalidArgumentError(
        "--hosts H --procs-per-host P start H x P workers: no --workers");
  }
  if (*hosts == 0 && !flags.Text("procs-per-host").empty()) {
    return absl::InvalidArgumentError("--procs-per-host is of hosts: give --hosts, too");
  }
  if (flags.Has("ssh")) {
    if (flags.Has("workers") || *hosts > 0) {
      return absl::InvalidArgumentError(
          "--ssh says where how many workers are: no --workers, no --hosts");
    }
    if (absl::Status read = ReadRemote(flags, &options); !read.ok()) return read;
    for (const auto& [name, value] : *settings) {
      if (IsVariableName(name)) continue;
      return absl::InvalidArgumentError(
          absl::StrFormat("option --set: a shell takes no variable '%s'", name));
    }
  } else if (flags.Has("ssh-option") || flags.Has("advertise")) {
    return absl::InvalidArgumentError("--ssh-option and --advertise are of --ssh");
  }
  options.json_lines = SettingOf(*settings, "BANDONEON_LOG_FORMAT") == "json";
  options.hosts = static_cast<int>(*hosts);
  if (options.remote.empty())
    options.workers = static_cast<int>(*hosts > 0 ? *hosts * *of_host : *workers);
  options.servers = flags.Has("servers") ? static_cast<int>(*servers) : *planned_servers;
  options.seed = flags.Text("seed");
  options.http_listen = flags.Text("http-listen");
  options.restarts = static_cast<int>(*restarts);
  options.linger = *linger;
  options.grace = *grace;
  options.settings = *std::move(settings);
  const std::string fewest = SettingOf(options.settings, "BANDONEON_MIN_WORKERS");
  if (!fewest.empty() && !absl::SimpleAtoi(fewest, &options.min_workers)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("setting min-workers is '%s', which is no number", fewest));
  }
  const std::string replayed = SettingOf(options.settings, "BANDONEON_REPLAY_STEPS");
  int64_t replay_steps = 1;  // some, where the scheduler's default counts
  if (!replayed.empty() && !absl::SimpleAtoi(replayed, &replay_steps)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("setting replay-steps is '%s', which is no number", replayed));
  }
  options.may_lose_servers = replay_steps > 0;
  const std::string level = SettingOf(options.settings, "BANDONEON_LOG_LEVEL");
  options.logs_begin = level.empty() || level == "info" || level == "debug";
  return options;
}

// Returns the input of the only worker: this process's standard input. A terminal lets only
// processes in its foreground read it, and the worker is none of them; there a child of ours reads
// it and passes it on.
int OpenWorkerInput() {
  if (isatty(STDIN_FILENO) == 0) return STDIN_FILENO;
  int fds[2];
  if (pipe2(fds, O_CLOEXEC) != 0) return -1;
  const pid_t front = getpid();
  const pid_t child = fork();
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    // Ctrl-C is meant for the job. With SIGTTIN ignored, a read in the background fails and does
    // not stop this process.
    for (const int number : {SIGINT, SIGQUIT, SIGTTIN}) signal(number, SIG_IGN);
    signal(SIGPIPE, SIG_DFL);
    if (getppid() != front) _exit(0);
    close(fds[0]);
    char chunk[4096];
    for (ssize_t size; (size = read(STDIN_FILENO, chunk, sizeof(chunk))) > 0;) {
      for (ssize_t done = 0; done < size;) {
        const ssize_t written = write(fds[1], chunk + done, static_cast<size_t>(size - done));
        if (written <= 0) _exit(0);
        done += written;
      }
    }
    _exit(0);
  }
  close(fds[1]);
  return fds[0];
}

// Says whom a failed job waited for, where its processes have left recordings on this machine.
void SayWhoWasWaitedFor(LocalJob* job, const Variables& settings) {
  for (const char* const variable : {"BANDONEON_TRACE", "BANDONEON_RECORDER_DIR"}) {
    const std::string directory = SettingOf(settings, variable);
    if (directory.empty()) continue;
    const absl::StatusOr<JobTrace> recorded =
        ReadJob(directory, {.job = job->job_id(), .records = {.last_ns = kRecordedBeforeTheEndNs}});
    if (!recorded.ok()) continue;  // of another machine, or the job failed before there were any
    job->Say(absl::StrFormat("%s. See `bandoneon trace hang %s --job %s`",
                             ExplainHang(*recorded).sentence, directory, job->job_id()));
    return;
  }
}

// Settings that a check goes without, as it would leave files for the job or share its ports, and
// as it needs all nodes.
constexpr std::string_view kNotOfChecks[] = {
    "trace",       "recorder-dir", "journal",         "metrics-file",      "history-file",
    "http-listen", "min-workers",  "partition-bytes", "min-compress-bytes"};
constexpr const char* kVariablesNotOfChecks[] = {"BANDONEON_TRACE",        "BANDONEON_RECORDER_DIR",
                                                 "BANDONEON_JOURNAL",      "BANDONEON_METRICS_FILE",
                                                 "BANDONEON_HISTORY_FILE", "BANDONEON_HTTP_LISTEN",
                                                 "BANDONEON_MIN_WORKERS"};
// Options that it goes without, for the same reasons, or that are given anew.
constexpr std::string_view kOptionsNotOfChecks[] = {
    "check", "hosts", "procs-per-host", "workers", "http-listen", "min-workers", "set", "restarts"};

// Returns the command line of the check of a job: the job's own, with another program.
std::vector<std::string> CheckCommandLine(const CommandFlags& flags, const JobOptions& options) {
  const auto is_among = [](std::string_view name, std::span<const std::string_view> names) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  std::vector<std::string> argv = {"bandoneon", "run"};
  for (const Flag& flag : kFlags) {
    if (is_among(flag.name, kOptionsNotOfChecks)) continue;
    for (const std::string& value : flags.All(flag.name)) {
      argv.push_back(absl::StrCat("--", flag.name, "=", value));
    }
  }
  if (options.remote.empty()) {
    // A host's daemon is one worker of its job.
    argv.push_back(absl::StrCat("--workers=", options.hosts > 0 ? options.hosts : options.workers));
  }
  for (const std::string& setting : flags.All("set")) {
    if (is_among(setting.substr(0, setting.find('=')), kNotOfChecks)) continue;
    argv.push_back(absl::StrCat("--set=", setting));
  }
  // The check's tensors are one key each, and codecs tell its directions apart.
  argv.insert(argv.end(), {"--set=partition-bytes=4MiB", "--set=min-compress-bytes=64KiB", "--",
                           ProgramBeside("bandoneon"), "check"});
  return argv;
}

// Checks a job before it is started. Returns 0 where it may start, else an exit code.
int CheckFirst(const CommandFlags& flags, const JobOptions& options) {
  const auto ended =
      RunOwnCommand(CheckCommandLine(flags, options), kVariablesNotOfChecks, /*limit=*/{});
  if (!ended.ok()) {
    fprintf(stderr, "[run] the check did not start: %s\n",
            std::string(ended.status().message()).c_str());
    return 1;
  }
  const int code = ended->by_signal != 0 ? 128 + ended->by_signal : ended->code();
  if (code == 0) return 0;
  fprintf(stderr, "[run] the check of the job ended with %d: %s is not started\n", code,
          flags.command()[0].c_str());
  return code;
}

int RunJob(const JobOptions& options, const std::vector<std::string>& command,
           const std::string& directory) {
  LocalJob job(options, directory);
  absl::Status status = job.StartDaemons();
  if (status.ok()) {
    const std::string& address = job.scheduler_address();
    job.Say("scheduler at " + address);
    if (!job.token_file().empty()) {
      job.Say(absl::StrFormat("see bandoneon status --scheduler %s --token-file %s", address,
                              job.token_file()));
    }
    if (!job.page_url().empty()) fprintf(stderr, "[run] status page %s\n", job.page_url().c_str());
  }
  for (int i = 0; status.ok() && i < options.workers; ++i) status = job.StartWorker(command);
  if (!status.ok()) return job.GiveUp(status);
  const int code = job.Wait();
  if (code != 0) SayWhoWasWaitedFor(&job, options.settings);
  return code;
}

}  // namespace

int RunCommand(Arguments args) {
  if (PrintedHelp(args, kUsageText, kFlags, kExamples)) return 0;
  constexpr std::string_view kRepeated[] = {"set", "ssh-option"};
  const auto flags = CommandFlags::Parse(kFlags, args, kRepeated);
  if (!flags.ok()) return UsageError("run", flags.status());
  auto options = ReadOptions(*flags);
  if (!options.ok()) return UsageError("run", options.status());
  if (flags->Has("check")) {
    if (const int code = CheckFirst(*flags, *options); code != 0) return code;
  }
  // Before RunGuarded, as the guardian is in no foreground group.
  if (options->workers == 1 && options->remote.empty()) options->input = OpenWorkerInput();
  return RunGuarded(
      [&](const std::string& directory) { return RunJob(*options, flags->command(), directory); });
}

}  // namespace bdn::cli
