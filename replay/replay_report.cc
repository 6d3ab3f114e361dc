#include "replay/replay_report.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/base/status.h"
#include "common/wire/frame.h"
#include "replay/replay_trace.h"
#include "replay/simulator.h"
#include "replay/what_if.h"
#include "trace/text_table.h"

namespace bdn {
namespace {

using Json = nlohmann::ordered_json;

// A replay of more exchanges is not kept whole: its times alone would take gigabytes.
constexpr uint64_t kMostKept = 1'500'000;
// A run-queue wait above this share makes a machine busy.
constexpr double kBusyShare = 0.05;
// A share of its processors' time above which it is busy, too.
constexpr double kBusyMachine = 0.9;
// The allowances of a prediction beside the errors that are known, as shares: for the recorded
// settings, and for others, whose costs are not those recorded.
constexpr double kSameAllowance = 0.02;
constexpr double kChangedAllowance = 0.05;

double Ms(double ns) { return ns * 1e-6; }
double Ms(int64_t ns) { return Ms(static_cast<double>(ns)); }

int64_t Quantile(std::vector<int64_t> values, double share) {
  if (values.empty()) return 0;
  const auto place = static_cast<ptrdiff_t>(share * static_cast<double>(values.size()));
  const auto at = values.begin() + std::min<ptrdiff_t>(place, std::ssize(values) - 1);
  std::nth_element(values.begin(), at, values.end());
  return *at;
}

StepTimes TimesOf(std::vector<uint64_t> numbers, std::vector<int64_t> durations) {
  StepTimes times{.median_ns = Quantile(durations, 0.5),
                  .tenth_ns = Quantile(durations, 0.1),
                  .ninth_ns = Quantile(durations, 0.9),
                  .numbers = std::move(numbers)};
  times.durations_ns = std::move(durations);
  return times;
}

// Returns the numbers of the steps that are compared: without the first one, before which other
// things happened, if there are enough.
std::set<uint64_t> ComparedSteps(const std::vector<uint64_t>& numbers) {
  return {numbers.begin() + (numbers.size() > 2 ? 1 : 0), numbers.end()};
}

// Returns the mean time in which a program waits for exchanges in one of these steps; -1 without
// marks.
double ExposedOf(const JobReport& report, const std::set<uint64_t>& chosen) {
  double exposed = 0;
  size_t programs = 0;
  for (const StepReport& step : report.steps) {
    if (!chosen.contains(step.step)) continue;
    for (const auto& [node, time] : step.exposed) {
      exposed += static_cast<double>(time.Total());
      ++programs;
    }
  }
  return programs > 0 ? exposed / static_cast<double>(programs) : -1;
}

StepTimes TimesOf(const JobReport& report, const std::set<uint64_t>& chosen) {
  std::vector<uint64_t> numbers;
  std::vector<int64_t> durations;
  for (const StepReport& step : report.steps) {
    if (!chosen.contains(step.step)) continue;
    numbers.push_back(step.step);
    durations.push_back(step.Duration());
  }
  StepTimes times = TimesOf(std::move(numbers), std::move(durations));
  times.exposed_ns = ExposedOf(report, chosen);
  return times;
}

// Returns the steps of a replay as ExplainJob has them in a recording, without exposed_ns: with
// marks from the end of a step to that of the next one at the worker that ends it last, without
// them from the first exchange of a step to the end of its last one.
StepTimes TimesOf(const ReplayModel& model, const ReplayResult& result) {
  const std::set<uint64_t> chosen = ComparedSteps(model.step_numbers);
  std::vector<uint64_t> numbers;
  std::vector<int64_t> durations;
  int64_t before = 0;
  for (size_t step = 0; step < model.step_numbers.size(); ++step) {
    const ExchangeSpan& span = result.exchange_spans[step];
    int64_t begin = before;
    int64_t end = std::max(before, span.end);
    if (model.has_marks) {
      end = 0;
      for (const auto& ends : result.step_ends) end = std::max(end, ends[step]);
    } else {
      begin = std::min(span.begin, end);
    }
    if (chosen.contains(model.step_numbers[step])) {
      numbers.push_back(model.step_numbers[step]);
      durations.push_back(end - begin);
    }
    before = model.has_marks ? end : 0;
  }
  return TimesOf(std::move(numbers), std::move(durations));
}

Busyness BusynessOf(const JobTrace& job, const ReplayModel& model) {
  Busyness busyness;
  double wall = 0;
  double queued = 0;
  for (const WorkerModel& worker : model.workers) {
    for (const StepProgram& step : worker.steps) {
      wall += static_cast<double>(step.wall_ns);
      queued += static_cast<double>(step.queued_ns);
    }
  }
  if (wall > 0 && model.has_marks) busyness.queued_share = queued / wall;
  struct Sums {
    double busy = 0, idle = 0, runnable = 0, samples = 0;
    int64_t cores = 0;
  };
  std::map<std::string, Sums> sums;
  for (const JobNode& node : job.nodes) {
    for (const TraceRecord& record : node.trace.records) {
      if (record.kind != static_cast<uint8_t>(TraceKind::kMachineSample)) continue;
      Sums& of_host = sums[node.trace.facts.host];
      of_host.busy += static_cast<double>(record.key);
      of_host.idle += static_cast<double>(record.step);
      of_host.runnable += record.bytes;
      of_host.samples += 1;
      of_host.cores = node.trace.facts.cores;
    }
  }
  for (const auto& [host, of_host] : sums) {
    const double all = of_host.busy + of_host.idle;
    if (all <= 0) continue;
    busyness.machines[host] = {of_host.busy / all, of_host.runnable / of_host.samples,
                               of_host.cores};
  }
  return busyness;
}

struct Played {
  StepTimes times;
  JobReport report;               // empty where it was not kept whole
  std::optional<JobTrace> trace;  // likewise
  uint64_t events = 0;
};

absl::StatusOr<Played> Play(const JobTrace& job, const ReplayModel& model) {
  const bool keep = model.CountExchanges() <= kMostKept;
  BDN_ASSIGN_OR_RETURN(const ReplayResult result, Simulate(model, keep));
  Played played{.times = TimesOf(model, result), .events = result.events};
  if (!keep) return played;
  BDN_ASSIGN_OR_RETURN(played.trace, ReplayTrace(job, model, result));
  played.report = ExplainJob(*played.trace);
  played.times.exposed_ns = ExposedOf(played.report, ComparedSteps(model.step_numbers));
  return played;
}

// Returns the standard error of the median, as a share of it.
double MedianError(const StepTimes& times) {
  std::vector<int64_t> deviations;
  for (const int64_t ns : times.durations_ns) deviations.push_back(std::abs(ns - times.median_ns));
  if (deviations.empty() || times.median_ns <= 0) return 0;
  const auto n = static_cast<double>(deviations.size());
  const auto mad = static_cast<double>(Quantile(std::move(deviations), 0.5));
  return 1.25 * 1.4826 * mad / std::sqrt(n) / static_cast<double>(times.median_ns);
}

double ShareOf(int64_t ns, int64_t of) {
  return of > 0 ? static_cast<double>(ns - of) / static_cast<double>(of) : 0;
}

// Returns the median error of the single steps.
double StepErrorOf(const StepTimes& same, const StepTimes& all_recorded) {
  std::map<uint64_t, int64_t> recorded;
  for (size_t i = 0; i < all_recorded.numbers.size(); ++i) {
    recorded[all_recorded.numbers[i]] = all_recorded.durations_ns[i];
  }
  std::vector<double> errors;
  for (size_t i = 0; i < same.numbers.size(); ++i) {
    const auto found = recorded.find(same.numbers[i]);
    if (found == recorded.end()) continue;
    errors.push_back(std::abs(ShareOf(same.durations_ns[i], found->second)));
  }
  if (errors.empty()) return 0;
  const auto middle = errors.begin() + std::ssize(errors) / 2;
  std::nth_element(errors.begin(), middle, errors.end());
  return *middle;
}

std::pair<int64_t, int64_t> IntervalOf(int64_t median_ns, double allowance) {
  const auto median = static_cast<double>(median_ns);
  return {static_cast<int64_t>(median * std::max(0.0, 1 - allowance)),
          static_cast<int64_t>(median * (1 + allowance))};
}

std::string BusyText(const Busyness& busyness) {
  std::vector<std::string> parts;
  bool is_busy = busyness.queued_share.value_or(0) > kBusyShare;
  if (busyness.queued_share) {
    parts.push_back(
        absl::StrFormat("The programs were ready to run and did not for %.1f %% of their steps",
                        100 * *busyness.queued_share));
  }
  for (const auto& [host, machine] : busyness.machines) {
    is_busy = is_busy || machine.busy_share > kBusyMachine;
    parts.push_back(absl::StrFormat(
        "%s (%d processors) was busy for %.0f %%, with %.1f runnable threads in the mean", host,
        machine.cores, 100 * machine.busy_share, machine.runnable));
  }
  if (parts.empty()) return "The recording does not say how busy the machines were.\n";
  std::string text = absl::StrJoin(parts, "; ") + ".\n";
  if (is_busy) {
    text += "A machine was busy: a prediction holds where it is as busy again, and is less sure.\n";
  }
  return text;
}

std::string ExposedText(const StepTimes& times) {
  return times.exposed_ns < 0 ? "-" : absl::StrFormat("%.2f", Ms(times.exposed_ns));
}

std::vector<std::string> Row(const std::string& name, const StepTimes& times) {
  return {name, absl::StrFormat("%.2f", Ms(times.median_ns)),
          absl::StrFormat("%.2f to %.2f", Ms(times.tenth_ns), Ms(times.ninth_ns)),
          ExposedText(times)};
}

std::string PathText(const ReplayReport& report) {
  const auto mean_of = [](const std::vector<JobReport::KindTime>& path, const std::string& kind) {
    for (const auto& one : path) {
      if (one.kind == kind) return one.mean_ns;
    }
    return 0.0;
  };
  TableRows rows = {
      {"KIND", "RECORDED MS", report.is_changed ? "PREDICTED MS" : "REPLAYED MS", "MOST OF IT"}};
  for (const auto& kind : report.path) {
    const auto most =
        std::max_element(kind.mean_by_node.begin(), kind.mean_by_node.end(),
                         [](const auto& a, const auto& b) { return a.second < b.second; });
    const std::string where = most == kind.mean_by_node.end() || kind.mean_ns <= 0
                                  ? "-"
                                  : absl::StrFormat("%s %.0f%%", report.node_names[most->first],
                                                    100 * most->second / kind.mean_ns);
    rows.push_back({kind.kind,
                    absl::StrFormat("%.2f", Ms(mean_of(report.recorded_path, kind.kind))),
                    absl::StrFormat("%.2f", Ms(kind.mean_ns)), where});
  }
  return "The critical path of a step, means over these steps:\n" + TextTable(rows);
}

uint64_t CountKeys(const ReplayModel& model) {
  std::set<uint32_t> keys;
  for (const WorkerModel& worker : model.workers) {
    for (const StepProgram& step : worker.Steps()) {
      for (const ExchangeCosts& costs : step.exchanges) keys.insert(costs.key);
    }
  }
  return keys.size();
}

// Returns the payloads' and headers' bytes of a step, all workers together: a mean.
Json BytesJson(const ReplayModel& model) {
  double pushed = 0;
  double pulled = 0;
  for (const WorkerModel& worker : model.workers) {
    for (const StepProgram& step : worker.Steps()) {
      for (const ExchangeCosts& costs : step.exchanges) {
        pushed += kHeaderBytes + costs.push_bytes;
        pulled += kHeaderBytes + costs.reply_bytes;
      }
    }
  }
  const auto steps = static_cast<double>(model.step_numbers.size());
  return {{"pushed", pushed / steps}, {"pulled", pulled / steps}};
}

Json TimesJson(const StepTimes& times) {
  Json json = {{"median_step_ms", Ms(times.median_ns)},
               {"tenth_ms", Ms(times.tenth_ns)},
               {"nine_tenths_ms", Ms(times.ninth_ns)}};
  json["exposed_ms"] = times.exposed_ns < 0 ? Json() : Json(Ms(times.exposed_ns));
  Json steps = Json::array();
  for (size_t i = 0; i < times.numbers.size(); ++i) {
    steps.push_back({{"step", times.numbers[i]}, {"ms", Ms(times.durations_ns[i])}});
  }
  json["steps"] = std::move(steps);
  return json;
}

}  // namespace

absl::StatusOr<Replayer> Replayer::Make(const JobTrace& job, std::string_view costs) {
  Replayer replayer(job);
  BDN_ASSIGN_OR_RETURN(replayer.model_, MakeReplayModel(job));
  replayer.costs_.AddRecorded(replayer.model_);
  BDN_RETURN_IF_ERROR(replayer.costs_.AddFile(costs));
  replayer.busyness_ = BusynessOf(job, replayer.model_);
  for (const auto& [host, machine] : replayer.busyness_.machines) {
    replayer.model_.idle_processors[host] =
        static_cast<double>(machine.cores) * (1 - machine.busy_share);
  }
  const JobReport recorded = ExplainJob(job);
  const std::set<uint64_t> chosen = ComparedSteps(replayer.model_.step_numbers);
  replayer.recorded_ = TimesOf(recorded, chosen);
  replayer.recorded_path_ = KindsOfSteps(recorded, chosen);
  if (replayer.recorded_.median_ns <= 0) {
    return NotFound("the recorded steps have no length, so there is nothing to compare with");
  }
  BDN_ASSIGN_OR_RETURN(const ReplayResult same, Simulate(replayer.model_, false));
  replayer.same_ = TimesOf(replayer.model_, same);
  return replayer;
}

double Replayer::Allowance(bool is_changed) const {
  return std::abs(ShareOf(same_.median_ns, recorded_.median_ns)) + 2 * MedianError(recorded_) +
         (is_changed ? kChangedAllowance + busyness_.queued_share.value_or(0) : kSameAllowance);
}

absl::StatusOr<StepPrediction> Replayer::Predict(const ReplaySettings& settings) const {
  BDN_ASSIGN_OR_RETURN(const ReplayModel model, WithSettings(model_, settings, costs_));
  BDN_ASSIGN_OR_RETURN(const ReplayResult result, Simulate(model, false));
  StepPrediction prediction{.median_ns = TimesOf(model, result).median_ns};
  std::tie(prediction.low_ns, prediction.high_ns) =
      IntervalOf(prediction.median_ns, Allowance(!settings.IsEmpty()));
  prediction.warnings.assign(model.warnings.begin() + std::ssize(model_.warnings),
                             model.warnings.end());
  return prediction;
}

absl::StatusOr<ReplayReport> Replayer::Report(const ReplaySettings& settings) const {
  ReplayReport report{.settings = settings.texts,
                      .busyness = busyness_,
                      .recorded = recorded_,
                      .is_changed = !settings.IsEmpty(),
                      .recorded_path = recorded_path_};
  BDN_ASSIGN_OR_RETURN(report.model, WithSettings(model_, settings, costs_));
  BDN_ASSIGN_OR_RETURN(Played same, Play(*job_, model_));
  report.same = std::move(same.times);
  report.same_error = ShareOf(report.same.median_ns, report.recorded.median_ns);
  report.same_step_error = StepErrorOf(report.same, report.recorded);
  Played played;
  if (report.is_changed) {
    same = Played();  // its memory is needed
    BDN_ASSIGN_OR_RETURN(played, Play(*job_, report.model));
    report.predicted = std::move(played.times);
  } else {
    played = std::move(same);
    report.predicted = report.same;
  }
  std::tie(report.low_ns, report.high_ns) =
      IntervalOf(report.predicted.median_ns, Allowance(report.is_changed));
  report.path = KindsOfSteps(played.report, ComparedSteps(report.model.step_numbers));
  report.trace = std::move(played.trace);
  report.events = played.events;
  if (report.trace) {
    for (uint32_t i = 0; i < report.trace->nodes.size(); ++i) {
      report.node_names.push_back(report.trace->NodeName(i));
    }
  }
  report.warnings = job_->warnings;
  for (const std::string& warning : report.model.warnings) report.warnings.push_back(warning);
  return report;
}

absl::StatusOr<StepTimes> MeasuredSteps(const JobTrace& job) {
  BDN_ASSIGN_OR_RETURN(const ReplayModel model, MakeReplayModel(job));
  return TimesOf(ExplainJob(job), ComparedSteps(model.step_numbers));
}

std::string ReplayText(const ReplayReport& report) {
  const ReplayModel& model = report.model;
  std::string text =
      absl::StrFormat("%d steps, %d to %d, of %d workers and %d servers\n",
                      model.step_numbers.size(), model.step_numbers.front(),
                      model.step_numbers.back(), model.workers.size(), model.servers.size());
  if (!model.has_marks) {
    text +=
        "No program has marked its steps, so exchanges alone are replayed: what the program "
        "computed between\ntwo of them takes as long as it did (docs/tracing.md says who marks).\n";
  }
  for (const std::string& warning : report.warnings)
    absl::StrAppend(&text, "note: ", warning, "\n");
  text += BusyText(report.busyness);
  TableRows rows = {{"", "MEDIAN STEP MS", "EIGHT OF TEN STEPS", "EXPOSED MS"}};
  rows.push_back(Row("recorded", report.recorded));
  rows.push_back(Row("replayed", report.same));
  if (report.is_changed) rows.push_back(Row("predicted", report.predicted));
  absl::StrAppend(&text, "\n", TextTable(rows));
  absl::StrAppendFormat(&text,
                        "The replay of the recorded settings errs by %+.1f %% in the median step, "
                        "and by %.1f %% in a single one.\n",
                        100 * report.same_error, 100 * report.same_step_error);
  if (report.is_changed) {
    absl::StrAppendFormat(
        &text, "With %s: %.2f ms a step, %.2f to %.2f ms, %.3g times as fast.\n",
        absl::StrJoin(report.settings, ", "), Ms(report.predicted.median_ns), Ms(report.low_ns),
        Ms(report.high_ns),
        static_cast<double>(report.same.median_ns) /
            static_cast<double>(std::max<int64_t>(report.predicted.median_ns, 1)));
  }
  if (!report.path.empty()) absl::StrAppend(&text, "\n", PathText(report));
  return text;
}

std::string ReplayJson(const ReplayReport& report) {
  Json machines = Json::object();
  for (const auto& [host, machine] : report.busyness.machines) {
    machines[host] = {{"busy_share", machine.busy_share},
                      {"runnable", machine.runnable},
                      {"processors", machine.cores}};
  }
  Json json = {
      {"settings", report.settings},
      {"workers", report.model.workers.size()},
      {"servers", report.model.servers.size()},
      {"keys", CountKeys(report.model)},
      {"marks", report.model.has_marks},
      {"warnings", report.warnings},
      {"queued_share", report.busyness.queued_share ? Json(*report.busyness.queued_share) : Json()},
      {"step_bytes", BytesJson(report.model)},
      {"machines", std::move(machines)},
      {"recorded", TimesJson(report.recorded)},
      {"replayed", TimesJson(report.same)},
      {"median_error", report.same_error},
      {"step_error", report.same_step_error},
      {"predicted", TimesJson(report.predicted)},
      {"interval_ms", {Ms(report.low_ns), Ms(report.high_ns)}},
      {"events", report.events},
      {"critical_path", Json::array()}};
  for (const auto& kind : report.path) {
    Json by_node = Json::object();
    for (const auto& [node, ns] : kind.mean_by_node) by_node[report.node_names[node]] = Ms(ns);
    json["critical_path"].push_back(
        {{"kind", kind.kind}, {"mean_ms", Ms(kind.mean_ns)}, {"mean_by_node_ms", by_node}});
  }
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace bdn
