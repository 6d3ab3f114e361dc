#include <algorithm>
#include <chrono>
#include <cstdio>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/commands.h"
#include "cli/python_stack.h"
#include "cli/trace_dump_command.h"
#include "trace/hang_report.h"
#include "trace/job_trace.h"
#include "trace/step_report.h"
#include "trace/timeline.h"
#include "trace/torch_profile.h"

namespace bdn::cli {
namespace {

// Viewers take no longer JSON.
constexpr uint64_t kMaxJsonBytes = 500'000'000;
// About 15 GB of memory.
constexpr uint64_t kMaxRecords = 150'000'000;
// A process that computes on a busy machine answers within so long.
constexpr absl::Duration kStackPatience = absl::Seconds(2);

constexpr Flag kJobFlag = {"job", 0, "NAME", "of which job, where DIR has several"};
constexpr Flag kLastFlag = {
    "last", 0, "TIME", "read only what ended so long before the end of each recording, or later"};

constexpr Flag kMergeFlags[] = {
    {"output", 'o', "FILE", "what to write: FILE.pftrace, FILE.json, FILE.json.gz or FILE.svg"},
    {"step", 0, "NUMBER", "one step alone, with its critical path above it"},
    {"torch", 0, "[RANK=]FILE ...",
     "profiles of PyTorch to put on the same axis, .json or .json.gz"},
    {"force", 0, nullptr, "write JSON that is longer than viewers take (500 MB)"},
    kJobFlag,
    kLastFlag,
};
constexpr char kMergeUsage[] =
    "usage: bandoneon trace merge DIR -o FILE [options]\n\n"
    "Makes one timeline of a job's recordings (setting trace) for ui.perfetto.dev: a process for "
    "each\nnode, a track for each thread, and flows from a push to the decoding of its reply. A "
    "name that\nends in .svg makes a picture, which every browser shows.\n";
constexpr char kMergeExamples[] =
    "  bandoneon trace merge recordings -o job.pftrace\n"
    "  bandoneon trace merge recordings --step 812 -o step.svg\n"
    "  bandoneon trace merge recordings -o job.json.gz --torch 0=rank0.json 1=rank1.json\n";

constexpr Flag kExplainFlags[] = {
    {"step", 0, "NUMBER", "one step, with its critical path piece by piece"},
    {"json", 0, nullptr, "print all figures as JSON"},
    kJobFlag,
    kLastFlag,
};
constexpr char kExplainUsage[] =
    "usage: bandoneon trace explain DIR [options]\n\n"
    "Says where the time of a job's steps went: the critical path, the communication that the "
    "programs\nwaited for, and why the slowest steps were slow.\n";
constexpr char kExplainExamples[] =
    "  bandoneon trace explain recordings\n"
    "  bandoneon trace explain recordings --step 812\n"
    "  bandoneon trace explain recordings --json | python3 -m json.tool\n";

constexpr Flag kHangFlags[] = {
    {"json", 0, nullptr, "print it as JSON"},
    kJobFlag,
    kLastFlag,
};
constexpr char kHangUsage[] =
    "usage: bandoneon trace hang DIR [options]\n"
    "       bandoneon trace hang --scheduler HOST:PORT [options]\n\n"
    "Says which node all others wait for where the recordings end: the tensor and step, and what "
    "it did last;\nand, while the job runs, on the machine of that node's program, the Python "
    "stack of its main thread.\nWith --scheduler the nodes of a job that runs are asked, as by "
    "bandoneon trace dump; nothing is written.\n";
constexpr char kHangExamples[] =
    "  bandoneon trace hang recordings\n"
    "  bandoneon trace hang recordings --last 60s\n"
    "  bandoneon trace hang --scheduler 127.0.0.1:7000\n";

int Failed(const char* name, const absl::Status& status) {
  fprintf(stderr, "bandoneon %s: %s\n", name, std::string(status.message()).c_str());
  return 1;
}

// The arguments of a command: its directory, and its flags.
struct TraceArguments {
  std::string directory;
  CommandFlags flags;
  JobSelection selection;
};

// Gives each file behind --torch the option of its own that it stands for.
std::vector<std::string> WithEachTorch(Arguments args) {
  std::vector<std::string> each;
  bool is_torch = false;
  for (const std::string& arg : args) {
    if (is_torch && !arg.starts_with('-') && each.back() != "--torch") each.emplace_back("--torch");
    if (arg.starts_with('-')) is_torch = arg == "--torch";
    each.push_back(arg);
  }
  return each;
}

absl::StatusOr<TraceArguments> ParseArguments(std::span<const Flag> flags, Arguments args) {
  if (args.empty() || args[0].starts_with('-')) {
    return absl::InvalidArgumentError(
        "which recordings? The directory that setting trace names comes first");
  }
  constexpr std::string_view kRepeated[] = {"torch"};
  auto parsed = CommandFlags::Parse(flags, WithEachTorch(args.subspan(1)), kRepeated);
  if (!parsed.ok()) return parsed.status();
  TraceArguments arguments{.directory = args[0], .flags = *parsed};
  arguments.selection.job = parsed->Text("job");
  arguments.selection.records.max_records = kMaxRecords;
  if (parsed->Has("last")) {
    const auto last = parsed->Duration("last", std::chrono::milliseconds(0));
    if (!last.ok()) return last.status();
    arguments.selection.records.last_ns = std::chrono::nanoseconds(*last).count();
  }
  return arguments;
}

// Asks programs of this machine that may hold up the job for their Python stack.
void AskForStack(const JobTrace& job, HangReport* report) {
  const std::string boot_id = BootId();
  for (const size_t i : NodesToAsk(job, *report)) {
    NodeState* const state = &report->nodes[i];
    const NodeTrace& trace = job.nodes[state->node].trace;
    if (boot_id.empty() || trace.facts.boot_id != boot_id) {
      state->why_no_stack =
          "it may be asked on its own machine alone, by this command with its recording there";
      continue;
    }
    PythonStack answer = AskForPythonStack(trace.facts.pid, trace.LastSign(), kStackPatience);
    state->stack = std::move(answer.text);
    state->why_no_stack = std::move(answer.why_not);
  }
}

// Reads a profile that is named as FILE or RANK=FILE.
absl::StatusOr<TorchProfile> ReadProfile(const std::string& named) {
  const size_t equals = named.find('=');
  int rank = 0;
  if (equals != std::string::npos && absl::SimpleAtoi(named.substr(0, equals), &rank) &&
      rank >= 0) {
    return ReadTorchProfile(named.substr(equals + 1), rank);
  }
  return ReadTorchProfile(named, std::nullopt);
}

// Returns the step that --step names, if it is there.
absl::StatusOr<std::optional<uint64_t>> StepOf(const CommandFlags& flags) {
  const auto number = flags.Int("step", 0, 0, std::numeric_limits<int64_t>::max());
  if (!number.ok()) return number.status();
  if (!flags.Has("step")) return std::nullopt;
  return static_cast<uint64_t>(*number);
}

// Returns a step of a report. NotFound says which steps there are.
absl::StatusOr<const StepReport*> FindStep(const JobReport& report, uint64_t step) {
  for (const StepReport& one : report.steps) {
    if (one.step == step) return &one;
  }
  if (report.steps.empty()) return absl::NotFoundError("no step has ended in these recordings");
  return absl::NotFoundError(
      absl::StrFormat("step %d is not in these recordings, which have steps %d to %d", step,
                      report.steps.front().step, report.steps.back().step));
}

void Print(const std::string& text) { fwrite(text.data(), 1, text.size(), stdout); }

int PrintHang(const JobTrace& job, const CommandFlags& flags) {
  HangReport report = ExplainHang(job);
  AskForStack(job, &report);
  Print(flags.Has("json") ? HangJson(job, report) : HangText(job, report));
  return 0;
}

// Does what `trace hang` does with the records that a scheduler collects.
int HangOfRunningJob(Arguments args) {
  constexpr char kName[] = "trace hang";
  const auto flags = CommandFlags::Parse(WithDumpFlags(kHangFlags), args);
  if (!flags.ok()) return UsageError(kName, flags.status());
  if (flags->Has("job")) {
    return UsageError(kName, absl::InvalidArgumentError(
                                 "option --job is for recordings in a directory: a scheduler has "
                                 "one job"));
  }
  const auto question = ReadDumpQuestion(*flags);
  if (!question.ok()) return UsageError(kName, question.status());
  Dump dump;
  const absl::Status taken = TakeDump(*question, [&](const DumpedTrace& node) {
    dump.Add(node);
    return absl::OkStatus();
  });
  if (!taken.ok()) {
    return Failed(
        kName, absl::Status(taken.code(), absl::StrCat(taken.message(), TokenHint(*flags, taken))));
  }
  const auto job = dump.Join();
  if (!job.ok()) return Failed(kName, job.status());
  return PrintHang(*job, *flags);
}

}  // namespace

int TraceMergeCommand(Arguments args) {
  constexpr char kName[] = "trace merge";
  if (PrintedHelp(args, kMergeUsage, kMergeFlags, kMergeExamples)) return 0;
  const auto arguments = ParseArguments(kMergeFlags, args);
  if (!arguments.ok()) return UsageError(kName, arguments.status());
  const std::string path = arguments->flags.Text("output");
  if (path.empty()) {
    return UsageError(kName, absl::InvalidArgumentError(
                                 "into which file? say -o FILE.pftrace or -o FILE.json.gz"));
  }
  const auto number = StepOf(arguments->flags);
  if (!number.ok()) return UsageError(kName, number.status());
  std::vector<TorchProfile> profiles;
  for (const std::string& named : arguments->flags.All("torch")) {
    auto profile = ReadProfile(named);
    if (!profile.ok()) return Failed(kName, profile.status());
    profiles.push_back(*std::move(profile));
  }
  const auto job = ReadJob(arguments->directory, arguments->selection);
  if (!job.ok()) return Failed(kName, job.status());
  TimelineOptions options;
  if (!arguments->flags.Has("force")) options.max_json_bytes = kMaxJsonBytes;
  JobReport report;
  if (*number) {
    report = ExplainJob(*job);
    const auto step = FindStep(report, **number);
    if (!step.ok()) return Failed(kName, step.status());
    options.step = *step;
  }
  if (const absl::Status written = WriteTimeline(*job, profiles, path, options); !written.ok()) {
    return Failed(kName, written);
  }
  for (const std::string& warning : job->warnings) {
    fprintf(stderr, "bandoneon trace merge: note: %s\n", warning.c_str());
  }
  size_t records = 0;
  for (const JobNode& node : job->nodes) records += node.trace.records.size();
  const int64_t length_ns =
      options.step != nullptr ? options.step->Duration() : job->LastNs() - job->FirstNs();
  printf("%s: job %s, %zu nodes, %zu records, %zu exchanges, %.4g s. Open it %s\n", path.c_str(),
         job->job.c_str(), job->nodes.size(), records, job->exchanges.size(),
         static_cast<double>(length_ns) * 1e-9,
         path.ends_with(".svg") ? "in a browser" : "at ui.perfetto.dev");
  return 0;
}

int TraceExplainCommand(Arguments args) {
  constexpr char kName[] = "trace explain";
  if (PrintedHelp(args, kExplainUsage, kExplainFlags, kExplainExamples)) return 0;
  const auto arguments = ParseArguments(kExplainFlags, args);
  if (!arguments.ok()) return UsageError(kName, arguments.status());
  const auto number = StepOf(arguments->flags);
  if (!number.ok()) return UsageError(kName, number.status());
  const std::optional<uint64_t> step = *number;
  const auto job = ReadJob(arguments->directory, arguments->selection);
  if (!job.ok()) return Failed(kName, job.status());
  const JobReport report = ExplainJob(*job);
  if (step) {
    if (const auto found = FindStep(report, *step); !found.ok()) {
      return Failed(kName, found.status());
    }
  }
  Print(arguments->flags.Has("json") ? ReportJson(*job, report, step)
                                     : ReportText(*job, report, step));
  return 0;
}

int TraceHangCommand(Arguments args) {
  constexpr char kName[] = "trace hang";
  const std::vector<Flag> flags = WithDumpFlags(kHangFlags);
  if (PrintedHelp(args, kHangUsage, flags, kHangExamples)) return 0;
  const bool has_directory = !args.empty() && !args[0].starts_with('-');
  if (!has_directory && NamesScheduler(args)) return HangOfRunningJob(args);
  const auto arguments = ParseArguments(flags, args);
  if (!arguments.ok()) return UsageError(kName, arguments.status());
  for (const Flag& flag : WithDumpFlags({})) {
    if (!arguments->flags.Has(flag.name)) continue;
    return UsageError(kName, absl::InvalidArgumentError(absl::StrFormat(
                                 "option --%s is for a job that runs, and the recordings in a "
                                 "directory are of one that need not: say one of both",
                                 flag.name)));
  }
  const auto job = ReadJob(arguments->directory, arguments->selection);
  if (!job.ok()) return Failed(kName, job.status());
  return PrintHang(*job, arguments->flags);
}

}  // namespace bdn::cli
