#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "cli/commands.h"
#include "cli/plan_file.h"
#include "replay/plan_search.h"
#include "replay/replay_report.h"
#include "replay/replay_settings.h"
#include "trace/job_trace.h"
#include "trace/timeline.h"

namespace bdn::cli {
namespace {

constexpr uint64_t kMostJsonBytes = 500'000'000;
constexpr uint64_t kMostRecords = 50'000'000;
constexpr int64_t kMostWorkers = 100'000;
constexpr int64_t kMostServers = 64;

constexpr Flag kCostsFlag = {"costs", 0, "FILE",
                             "what codecs cost, of `bandoneon bench codecs --json`"};
constexpr Flag kJobFlag = {"job", 0, "NAME", "of which job, where DIR has several"};
constexpr Flag kLastFlag = {
    "last", 0, "TIME", "read only what ended so long before the end of each recording, or later"};

constexpr Flag kReplayFlags[] = {
    {"set", 0, "NAME=VALUE", "what to change; repeatable. The settings are listed below"},
    {"workers", 'n', "COUNT", "so many workers, made from the recorded ones"},
    kCostsFlag,
    {"output", 'o', "FILE", "write the replay as a timeline: FILE.pftrace, .json or .json.gz"},
    {"json", 0, nullptr, "print all figures as JSON"},
    kJobFlag,
    kLastFlag,
};
constexpr char kReplayUsage[] =
    "usage: bandoneon replay DIR [--set NAME=VALUE]... [options]\n\n"
    "Plays each step of a job's recordings (setting trace) through again, as it was and with other "
    "settings,\nand says what a step would take. How far the replay of the recorded settings is "
    "off is printed, too.\n";
constexpr char kReplayExamples[] =
    "  bandoneon replay recordings\n"
    "  bandoneon replay recordings --set link=300mbit\n"
    "  bandoneon bench codecs --codec 'onebit(block=64)' --json > costs.jsonl\n"
    "  bandoneon replay recordings --set 'push=ef(onebit(block=64))' --set "
    "'pull=ef(onebit(block=64))' \\\n"
    "    --costs costs.jsonl -o predicted.pftrace\n"
    "  bandoneon replay recordings --workers 16 --set servers=4\n"
    "  bandoneon replay recordings --set median --set drop=3\n";

constexpr Flag kTuneFlags[] = {
    {"output", 'o', "FILE", "write the best plan there, for `bandoneon run --plan FILE`"},
    {"codec", 0, "SPEC", "a codec that may be used, each way; repeatable [none but the recorded]"},
    {"servers", 's', "COUNT", "up to so many servers may be used [as many as were recorded]"},
    kCostsFlag,
    {"json", 0, nullptr, "print the plans as JSON"},
    kJobFlag,
    kLastFlag,
};
constexpr char kTuneUsage[] =
    "usage: bandoneon tune DIR [-o plan.json] [options]\n\n"
    "Looks for settings with which a job's steps are faster, by replays of its recordings: "
    "partition-bytes,\nmax-bytes-in-flight, and what the options allow. Codecs change what a job "
    "learns (docs/codecs.md).\n";
constexpr char kTuneExamples[] =
    "  bandoneon tune recordings -o plan.json && bandoneon run --plan plan.json -n 4 -- python "
    "train.py\n"
    "  bandoneon tune recordings --codec fp16 --costs costs.jsonl --servers 4\n";

int Failed(const char* name, const absl::Status& status) {
  fprintf(stderr, "bandoneon %s: %s\n", name, std::string(status.message()).c_str());
  return 1;
}

// Returns 2 where the arguments are wrong, 1 where the recordings are.
int ExitOf(const char* name, const absl::Status& status) {
  return absl::IsInvalidArgument(status) || absl::IsUnimplemented(status) ? UsageError(name, status)
                                                                          : Failed(name, status);
}

struct Parsed {
  std::string directory;
  CommandFlags flags;
  JobSelection selection;
  std::string costs;
};

absl::StatusOr<Parsed> Parse(std::span<const Flag> known, Arguments args) {
  if (args.empty() || args[0].starts_with('-')) {
    return absl::InvalidArgumentError(
        "which recordings? The directory that setting trace names comes first");
  }
  constexpr std::string_view kRepeated[] = {"set", "codec"};
  auto flags = CommandFlags::Parse(known, args.subspan(1), kRepeated);
  if (!flags.ok()) return flags.status();
  Parsed parsed{.directory = args[0], .flags = *std::move(flags)};
  parsed.selection.job = parsed.flags.Text("job");
  parsed.selection.records.max_records = kMostRecords;
  if (parsed.flags.Has("last")) {
    const auto last = parsed.flags.Duration("last", std::chrono::milliseconds(0));
    if (!last.ok()) return last.status();
    parsed.selection.records.last_ns = std::chrono::nanoseconds(*last).count();
  }
  if (parsed.flags.Has("costs")) {
    auto costs = ReadWholeFile(parsed.flags.Text("costs"));
    if (!costs.ok()) return costs.status();
    parsed.costs = *std::move(costs);
  }
  return parsed;
}

absl::StatusOr<ReplaySettings> ReadSettings(const CommandFlags& flags) {
  ReplaySettings settings;
  for (const std::string& text : flags.All("set")) {
    if (absl::Status added = AddReplaySetting(text, &settings); !added.ok()) return added;
  }
  const auto workers = flags.Int("workers", 1, 1, kMostWorkers);
  if (!workers.ok()) return workers.status();
  if (flags.Has("workers")) {
    settings.workers = static_cast<uint32_t>(*workers);
    settings.texts.push_back(absl::StrCat(*workers, " workers"));
  }
  return settings;
}

PlanSettings SettingsOf(const Plan& plan) {
  PlanSettings settings;
  for (const std::string& text : plan.settings.texts) {
    const size_t equals = text.find('=');
    settings.emplace_back(text.substr(0, equals), text.substr(equals + 1));
  }
  return settings;
}

double Ms(int64_t ns) { return static_cast<double>(ns) * 1e-6; }

void PrintPlans(const PlanSearch& search) {
  printf("%llu replays; the recorded settings take %.2f ms a step, replayed\n",
         static_cast<unsigned long long>(search.replays), Ms(search.recorded_ns));
  if (search.plans.empty())
    printf("No other setting that was tried is faster by half a percent.\n");
  for (const Plan& plan : search.plans) {
    printf("%8.2f ms, %.2f times as fast: %s\n", Ms(plan.median_ns),
           static_cast<double>(search.recorded_ns) /
               static_cast<double>(std::max<int64_t>(plan.median_ns, 1)),
           absl::StrJoin(plan.settings.texts, " ").c_str());
  }
}

std::string PlansJson(const PlanSearch& search) {
  std::vector<std::string> plans;
  for (const Plan& plan : search.plans) {
    plans.push_back(PlanText(SettingsOf(plan), Ms(search.recorded_ns), Ms(plan.median_ns)));
  }
  return absl::StrCat("[", absl::StrJoin(plans, ","), "]\n");
}

bool WriteText(const std::string& path, const std::string& text) {
  FILE* const file = fopen(path.c_str(), "we");
  if (file == nullptr) return false;
  const bool written = fwrite(text.data(), 1, text.size(), file) == text.size();
  return (fclose(file) == 0) && written;
}

}  // namespace

int ReplayCommand(Arguments args) {
  constexpr char kName[] = "replay";
  const std::string examples =
      absl::StrCat(kReplayExamples, "\nSettings:\n", DescribeReplaySettings());
  if (PrintedHelp(args, kReplayUsage, kReplayFlags, examples)) return 0;
  const auto parsed = Parse(kReplayFlags, args);
  if (!parsed.ok()) return UsageError(kName, parsed.status());
  const auto settings = ReadSettings(parsed->flags);
  if (!settings.ok()) return UsageError(kName, settings.status());
  const auto job = ReadJob(parsed->directory, parsed->selection);
  if (!job.ok()) return Failed(kName, job.status());
  const auto replayer = Replayer::Make(*job, parsed->costs);
  if (!replayer.ok()) return ExitOf(kName, replayer.status());
  const auto report = replayer->Report(*settings);
  if (!report.ok()) return ExitOf(kName, report.status());
  const std::string output = parsed->flags.Text("output");
  if (!output.empty()) {
    if (!report->trace) {
      return Failed(kName, absl::ResourceExhaustedError(
                               "the replay is too large to be drawn: read less by --last, or leave "
                               "out -o"));
    }
    const absl::Status written = WriteTimeline(*report->trace, {}, output, kMostJsonBytes);
    if (!written.ok()) return Failed(kName, written);
  }
  const std::string text = parsed->flags.Has("json") ? ReplayJson(*report) : ReplayText(*report);
  fwrite(text.data(), 1, text.size(), stdout);
  return 0;
}

int TuneCommand(Arguments args) {
  constexpr char kName[] = "tune";
  if (PrintedHelp(args, kTuneUsage, kTuneFlags, kTuneExamples)) return 0;
  const auto parsed = Parse(kTuneFlags, args);
  if (!parsed.ok()) return UsageError(kName, parsed.status());
  const auto servers = parsed->flags.Int("servers", 0, 1, kMostServers);
  if (!servers.ok()) return UsageError(kName, servers.status());
  const auto job = ReadJob(parsed->directory, parsed->selection);
  if (!job.ok()) return Failed(kName, job.status());
  const auto replayer = Replayer::Make(*job, parsed->costs);
  if (!replayer.ok()) return ExitOf(kName, replayer.status());
  for (const std::string& warning : job->warnings) {
    fprintf(stderr, "bandoneon tune: note: %s\n", warning.c_str());
  }
  for (const std::string& warning : replayer->model().warnings) {
    fprintf(stderr, "bandoneon tune: note: %s\n", warning.c_str());
  }
  const PlanSpace space{
      .most_servers = parsed->flags.Has("servers") ? static_cast<uint32_t>(*servers) : 0,
      .codecs = parsed->flags.All("codec")};
  const auto search = SearchPlans(*replayer, space);
  if (!search.ok()) return ExitOf(kName, search.status());
  if (parsed->flags.Has("json")) {
    const std::string json = PlansJson(*search);
    fwrite(json.data(), 1, json.size(), stdout);
  } else {
    PrintPlans(*search);
  }
  const std::string output = parsed->flags.Text("output");
  if (output.empty()) return 0;
  // Without a faster plan it is an empty one: the job as it was.
  const Plan best =
      search->plans.empty() ? Plan{.median_ns = search->recorded_ns} : search->plans.front();
  if (!WriteText(output, PlanText(SettingsOf(best), Ms(search->recorded_ns), Ms(best.median_ns)))) {
    return Failed(kName, absl::NotFoundError(output + " cannot be written"));
  }
  return 0;
}

}  // namespace bdn::cli
