#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "cli/commands.h"
#include "cli/plan_file.h"
#include "cli/plan_trial.h"
#include "cli/recording_flags.h"
#include "replay/plan_search.h"
#include "replay/replay_report.h"
#include "trace/job_trace.h"
#include "trace/text_table.h"

namespace bdn::cli {
namespace {

constexpr char kName[] = "tune";
constexpr int64_t kMostServers = 64;
constexpr int64_t kMostWorkers = 4096;
constexpr int64_t kMostRounds = 100;
constexpr int kInterrupted = 130;

constexpr Flag kFlags[] = {
    {"output", 'o', "FILE", "write the best plan there, for `bandoneon run --plan FILE`"},
    {"codec", 0, "SPEC", "a codec that may be used, each way; repeatable [none but the recorded]"},
    {"servers", 's', "COUNT", "up to so many servers may be used [as many as were recorded]"},
    {"try", 0, nullptr,
     "run the program behind -- with the recorded settings and each plan; the best is what is "
     "measured to be"},
    {"rounds", 0, "COUNT", "of --try: run each so often, in turn [1]"},
    {"for", 0, "TIME", "of --try: end each run after so long, 0s for never [60s]"},
    {"workers", 'n', "COUNT", "of --try: worker processes [as many as were recorded]"},
    {"set", 0, "NAME=VALUE", "of --try: another setting of all runs; repeatable"},
    kCostsFlag,
    {"json", 0, nullptr, "print the plans as JSON"},
    kJobFlag,
    kLastFlag,
};
constexpr char kUsageText[] =
    "usage: bandoneon tune DIR [-o plan.json] [options]\n"
    "       bandoneon tune DIR --try [-o plan.json] [options] -- COMMAND [ARGUMENT ...]\n\n"
    "Looks for settings with which a job's steps are faster, by replays of its recordings:\n"
    "partition-bytes, fusion-bytes, max-bytes-in-flight, and what the options allow. Codecs\n"
    "change what a job learns (docs/codecs.md). With --try the plans are run on this machine,\n"
    "by `bandoneon run`, with link, transport and threads as they were recorded.\n";
constexpr char kExamples[] =
    "  bandoneon tune recordings -o plan.json && bandoneon run --plan plan.json -n 4 -- python "
    "train.py\n"
    "  bandoneon tune recordings --codec fp16 --costs costs.jsonl --servers 4\n"
    "  bandoneon tune recordings --try --for 2m -o plan.json -- python train.py\n";

// Settings of a job that a plan has, and those that all runs of --try have besides.
constexpr const char* kPlanNames[] = {"push", "pull", "partition-bytes", "fusion-bytes",
                                      "max-bytes-in-flight"};
constexpr const char* kRunNames[] = {"link", "transport", "threads", "io-threads"};

double Ms(int64_t ns) { return static_cast<double>(ns) * 1e-6; }

// A plan, or the recorded settings where `plan` is null.
struct Candidate {
  const Plan* plan = nullptr;
  StepPrediction step;
  PlanSettings settings;
  // The median step of each round of --try.
  std::vector<double> measured_ms;
  size_t steps = 0;     // that were measured, in all rounds
  std::string failure;  // why it could not be measured

  std::optional<double> MeasuredMs() const {
    if (measured_ms.empty() || !failure.empty()) return std::nullopt;
    std::vector<double> sorted = measured_ms;
    std::sort(sorted.begin(), sorted.end());
    return sorted[sorted.size() / 2];
  }
  std::string Name() const {
    return plan == nullptr ? "as recorded" : absl::StrJoin(plan->settings.texts, " ");
  }
};

// Returns the value of a setting in any recording of the job.
std::optional<std::string> RecordedSetting(const JobTrace& job, std::string_view name) {
  for (const JobNode& node : job.nodes) {
    for (const auto& [key, value] : node.trace.facts.settings) {
      if (key == name && !value.empty()) return value;
    }
  }
  return std::nullopt;
}

// Returns all settings of a plan. Those that it leaves as they were are there, too: its prediction
// is for them, and not for the defaults.
PlanSettings WholePlan(const JobTrace& job, const ReplayModel& model, const Plan* plan) {
  PlanSettings settings = {{"servers", absl::StrCat(model.servers.size())}};
  for (const char* const name : kPlanNames) {
    if (const auto value = RecordedSetting(job, name)) settings.emplace_back(name, *value);
  }
  if (plan == nullptr) return settings;
  for (const std::string& text : plan->settings.texts) {
    const size_t equals = text.find('=');
    const std::string name = text.substr(0, equals);
    const auto same = [&name](const auto& one) { return one.first == name; };
    const auto old = std::find_if(settings.begin(), settings.end(), same);
    if (old == settings.end()) {
      settings.emplace_back(name, text.substr(equals + 1));
    } else {
      old->second = text.substr(equals + 1);
    }
  }
  return settings;
}

std::vector<Candidate> CandidatesOf(const JobTrace& job, const ReplayModel& model,
                                    const PlanSearch& search) {
  std::vector<Candidate> candidates;
  candidates.push_back({.step = search.recorded, .settings = WholePlan(job, model, nullptr)});
  for (const Plan& plan : search.plans) {
    candidates.push_back(
        {.plan = &plan, .step = plan.step, .settings = WholePlan(job, model, &plan)});
  }
  return candidates;
}

PlanFigures FiguresOf(const Candidate& candidate, const Candidate& recorded) {
  return {.recorded_ms = Ms(recorded.step.median_ns),
          .predicted_ms = Ms(candidate.step.median_ns),
          .predicted_low_ms = Ms(candidate.step.low_ns),
          .predicted_high_ms = Ms(candidate.step.high_ns),
          .measured_ms = candidate.MeasuredMs(),
          .measured_recorded_ms = recorded.MeasuredMs(),
          .notes = candidate.step.warnings};
}

// ---- Trials ----

absl::StatusOr<TrialOptions> ReadTrial(const CommandFlags& flags, const JobTrace& job,
                                       const ReplayModel& model) {
  TrialOptions options{.command = flags.command()};
  const auto workers =
      flags.Int("workers", static_cast<int64_t>(model.workers.size()), 1, kMostWorkers);
  if (!workers.ok()) return workers.status();
  options.workers = static_cast<size_t>(*workers);
  const auto limit = flags.Duration("for", std::chrono::seconds(60));
  if (!limit.ok()) return limit.status();
  options.limit = *limit;
  for (const std::string& text : flags.All("set")) {
    const size_t equals = text.find('=');
    if (equals == std::string::npos || equals == 0) {
      return absl::InvalidArgumentError(
          absl::StrFormat("option --set: '%s' is not NAME=VALUE", text));
    }
    options.settings.emplace_back(text.substr(0, equals), text.substr(equals + 1));
  }
  for (const char* const name : kRunNames) {
    const auto same = [name](const auto& one) { return one.first == name; };
    if (std::any_of(options.settings.begin(), options.settings.end(), same)) continue;
    if (const auto value = RecordedSetting(job, name)) options.settings.emplace_back(name, *value);
  }
  return options;
}

// Runs all candidates in turn. Aborted where a signal came.
absl::Status Measure(const TrialOptions& options, int64_t rounds,
                     std::vector<Candidate>* candidates) {
  for (int64_t round = 0; round < rounds; ++round) {
    for (Candidate& candidate : *candidates) {
      if (!candidate.failure.empty()) continue;
      fprintf(stderr, "bandoneon tune: runs %s (round %lld of %lld)\n", candidate.Name().c_str(),
              static_cast<long long>(round) + 1, static_cast<long long>(rounds));
      const auto times = TryPlan(candidate.settings, options);
      if (absl::IsAborted(times.status())) return times.status();
      if (!times.ok()) {
        candidate.failure = std::string(times.status().message());
        fprintf(stderr, "bandoneon tune: %s: %s\n", candidate.Name().c_str(),
                candidate.failure.c_str());
        continue;
      }
      candidate.measured_ms.push_back(Ms(times->median_ns));
      candidate.steps += times->durations_ns.size();
    }
  }
  return absl::OkStatus();
}

// ---- Output ----

std::string MeasuredText(const Candidate& candidate) {
  const auto measured = candidate.MeasuredMs();
  if (!measured) return "failed";
  const auto [least, most] =
      std::minmax_element(candidate.measured_ms.begin(), candidate.measured_ms.end());
  if (candidate.measured_ms.size() == 1) return absl::StrFormat("%.2f", *measured);
  return absl::StrFormat("%.2f (%.2f to %.2f)", *measured, *least, *most);
}

void PrintPlans(const PlanSearch& search, const std::vector<Candidate>& candidates, bool tried,
                const Candidate& best) {
  printf("%llu replays\n\n", static_cast<unsigned long long>(search.replays));
  TableRows rows = {{"SETTINGS", "PREDICTED MS", "INTERVAL", "TIMES AS FAST"}};
  if (tried) {
    rows[0].emplace_back("MEASURED MS");
    rows[0].emplace_back("STEPS");
  }
  for (const Candidate& one : candidates) {
    rows.push_back({one.Name(), absl::StrFormat("%.2f", Ms(one.step.median_ns)),
                    absl::StrFormat("%.2f to %.2f", Ms(one.step.low_ns), Ms(one.step.high_ns)),
                    absl::StrFormat("%.2f", static_cast<double>(search.recorded.median_ns) /
                                                static_cast<double>(
                                                    std::max<int64_t>(one.step.median_ns, 1)))});
    if (!tried) continue;
    rows.back().push_back(MeasuredText(one));
    rows.back().push_back(absl::StrCat(one.steps));
  }
  printf("%s", TextTable(rows).c_str());
  for (const Candidate& one : candidates) {
    for (const std::string& warning : one.step.warnings) {
      printf("note: %s: %s\n", one.Name().c_str(), warning.c_str());
    }
  }
  if (search.plans.empty()) {
    printf("No other setting that was tried is faster by half a percent.\n");
  } else if (tried && best.plan == nullptr) {
    printf("As measured no plan is faster than the recorded settings.\n");
  } else if (tried && candidates[0].MeasuredMs()) {
    printf("As measured %s is the fastest: %.2f times as fast as the recorded settings.\n",
           best.Name().c_str(), *candidates[0].MeasuredMs() / *best.MeasuredMs());
  }
}

std::string PlansJson(const PlanSearch& search, const std::vector<Candidate>& candidates) {
  nlohmann::ordered_json json = {{"replays", search.replays}, {"notes", search.notes}};
  for (const Candidate& one : candidates) {
    auto plan =
        nlohmann::ordered_json::parse(PlanText(one.settings, FiguresOf(one, candidates[0])));
    if (!one.failure.empty()) plan["failure"] = one.failure;
    if (one.plan == nullptr) {
      json["recorded"] = std::move(plan);
      json["plans"] = nlohmann::ordered_json::array();
    } else {
      plan["changes"] = one.plan->settings.texts;
      json["plans"].push_back(std::move(plan));
    }
  }
  return json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

absl::Status WriteText(const std::string& path, const std::string& text) {
  FILE* const file = fopen(path.c_str(), "we");
  bool written = file != nullptr && fwrite(text.data(), 1, text.size(), file) == text.size();
  if (file != nullptr) written = (fclose(file) == 0) && written;
  if (written) return absl::OkStatus();
  return absl::NotFoundError(absl::StrFormat("%s cannot be written: %s", path, strerror(errno)));
}

// Returns the candidate with the least measured step, or predicted step where none was measured.
const Candidate& BestOf(const std::vector<Candidate>& candidates, bool tried) {
  const Candidate* best = nullptr;
  double best_ms = 0;
  for (const Candidate& one : candidates) {
    const auto ms = tried ? one.MeasuredMs() : std::optional(Ms(one.step.median_ns));
    if (!ms || (best != nullptr && *ms >= best_ms)) continue;
    best = &one;
    best_ms = *ms;
  }
  return best == nullptr ? candidates[0] : *best;
}

// Returns why the flags do not go together; OK where they do.
absl::Status CheckTrialFlags(const CommandFlags& flags) {
  const bool tries = flags.Has("try");
  for (const char* const name : {"rounds", "for", "workers", "set"}) {
    if (flags.Has(name) && !tries) {
      return absl::InvalidArgumentError(absl::StrFormat("--%s is of --try", name));
    }
  }
  if (tries == !flags.command().empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(tries ? "--try runs a command: put it behind --"
                                          : "a command is run with --try alone");
}

}  // namespace

int TuneCommand(Arguments args) {
  if (PrintedHelp(args, kUsageText, kFlags, kExamples)) return 0;
  const auto parsed = ParseRecordingArguments(kFlags, args);
  if (!parsed.ok()) return UsageError(kName, parsed.status());
  const CommandFlags& flags = parsed->flags;
  if (const absl::Status fit = CheckTrialFlags(flags); !fit.ok()) return UsageError(kName, fit);
  const auto servers = flags.Int("servers", 0, 1, kMostServers);
  if (!servers.ok()) return UsageError(kName, servers.status());
  const auto rounds = flags.Int("rounds", 1, 1, kMostRounds);
  if (!rounds.ok()) return UsageError(kName, rounds.status());
  const auto job = ReadJob(parsed->directory, parsed->selection);
  if (!job.ok()) return FailedWith(kName, job.status());
  const auto replayer = Replayer::Make(*job, parsed->costs);
  if (!replayer.ok()) return FailedBy(kName, replayer.status());
  const auto trial = ReadTrial(flags, *job, replayer->model());
  if (!trial.ok()) return UsageError(kName, trial.status());
  const PlanSpace space{.most_servers = flags.Has("servers") ? static_cast<uint32_t>(*servers) : 0,
                        .codecs = flags.All("codec")};
  const auto search = SearchPlans(*replayer, space);
  if (!search.ok()) return FailedBy(kName, search.status());
  for (const auto* notes : {&job->warnings, &replayer->model().warnings, &search->notes}) {
    for (const std::string& note : *notes) {
      fprintf(stderr, "bandoneon tune: note: %s\n", note.c_str());
    }
  }
  std::vector<Candidate> candidates = CandidatesOf(*job, replayer->model(), *search);
  const bool tries = flags.Has("try");
  if (tries && !Measure(*trial, *rounds, &candidates).ok()) return kInterrupted;
  const Candidate& best = BestOf(candidates, tries);
  if (flags.Has("json")) {
    const std::string json = PlansJson(*search, candidates);
    fwrite(json.data(), 1, json.size(), stdout);
  } else {
    PrintPlans(*search, candidates, tries, best);
  }
  if (tries && !best.MeasuredMs()) {
    return FailedWith(kName, absl::FailedPreconditionError("no run could be measured"));
  }
  if (!flags.Has("output")) return 0;
  const absl::Status written =
      WriteText(flags.Text("output"), PlanText(best.settings, FiguresOf(best, candidates[0])));
  return written.ok() ? 0 : FailedWith(kName, written);
}

}  // namespace bdn::cli
