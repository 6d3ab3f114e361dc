#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "cli/commands.h"
#include "cli/recording_flags.h"
#include "replay/replay_report.h"
#include "replay/replay_settings.h"
#include "trace/job_trace.h"
#include "trace/timeline.h"

namespace bdn::cli {
namespace {

constexpr uint64_t kMostJsonBytes = 500'000'000;
constexpr int64_t kMostWorkers = 100'000;

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

}  // namespace

int ReplayCommand(Arguments args) {
  constexpr char kName[] = "replay";
  const std::string examples =
      absl::StrCat(kReplayExamples, "\nSettings:\n", DescribeReplaySettings());
  if (PrintedHelp(args, kReplayUsage, kReplayFlags, examples)) return 0;
  const auto parsed = ParseRecordingArguments(kReplayFlags, args);
  if (!parsed.ok()) return UsageError(kName, parsed.status());
  if (!parsed->flags.command().empty()) {
    return UsageError(kName, absl::InvalidArgumentError("a replay runs no command: leave out --"));
  }
  const auto settings = ReadSettings(parsed->flags);
  if (!settings.ok()) return UsageError(kName, settings.status());
  const auto job = ReadJob(parsed->directory, parsed->selection);
  if (!job.ok()) return FailedWith(kName, job.status());
  const auto replayer = Replayer::Make(*job, parsed->costs);
  if (!replayer.ok()) return FailedBy(kName, replayer.status());
  const auto report = replayer->Report(*settings);
  if (!report.ok()) return FailedBy(kName, report.status());
  const std::string output = parsed->flags.Text("output");
  if (!output.empty()) {
    if (!report->trace) {
      return FailedBy(kName, absl::ResourceExhaustedError(
                                 "the replay is too large to be drawn: read less by --last, or "
                                 "leave out -o"));
    }
    const absl::Status written =
        WriteTimeline(*report->trace, {}, output, {.max_json_bytes = kMostJsonBytes});
    if (!written.ok()) return FailedWith(kName, written);
  }
  const std::string text = parsed->flags.Has("json") ? ReplayJson(*report) : ReplayText(*report);
  fwrite(text.data(), 1, text.size(), stdout);
  return 0;
}

}  // namespace bdn::cli
