#ifndef BANDONEON_REPLAY_REPLAY_REPORT_H_
#define BANDONEON_REPLAY_REPLAY_REPORT_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "replay/codec_costs.h"
#include "replay/replay_model.h"
#include "replay/replay_settings.h"
#include "trace/job_trace.h"
#include "trace/step_report.h"

namespace bdn {

// The steps of a job, recorded or replayed.
struct StepTimes {
  int64_t median_ns = 0;
  int64_t tenth_ns = 0;  // so long or shorter was a tenth of the steps
  int64_t ninth_ns = 0;  // and nine tenths
  // The time of a step in which programs waited for exchanges, the mean over steps and workers; -1
  // without marks, and of a replay that was not kept whole.
  double exposed_ns = -1;
  std::vector<uint64_t> numbers;
  std::vector<int64_t> durations_ns;
};

// The load of the machines while the job was recorded.
struct Busyness {
  // The share of the steps' time in which programs were ready to run and did not; nothing without
  // marks.
  std::optional<double> queued_share;
  struct Machine {
    double busy_share = 0;  // of all processors, by everybody
    double runnable = 0;    // processes and threads that ran or could have, a mean
    int64_t cores = 0;
  };
  std::map<std::string, Machine> machines;  // by host; empty where no samples were recorded
};

struct ReplayReport {
  ReplayModel model;  // as it was played
  std::vector<std::string> settings;
  std::vector<std::string> warnings;
  Busyness busyness;
  StepTimes recorded;
  StepTimes same;              // the recorded settings, replayed
  double same_error = 0;       // of the median step: replayed against recorded, as a share
  double same_step_error = 0;  // the median error of single steps
  bool is_changed = false;     // the rest is of the settings that were asked for
  StepTimes predicted;
  int64_t low_ns = 0;  // the interval of the median step
  int64_t high_ns = 0;
  std::vector<JobReport::KindTime> recorded_path;
  std::vector<JobReport::KindTime> path;  // of the prediction; empty where it was not kept whole
  std::vector<std::string> node_names;    // as its indices
  uint64_t events = 0;
  std::optional<JobTrace> trace;  // the prediction as a recording
};

// A step with some settings, as predicted.
struct StepPrediction {
  int64_t median_ns = 0;
  int64_t low_ns = 0;  // the interval of the median
  int64_t high_ns = 0;
  std::vector<std::string> warnings;  // doubts about it, as sentences
};

// A recording, ready to be replayed with this and that. Immutable, and so thread-safe.
class Replayer {
 public:
  // Replays the recorded settings, too, to know how far that is off. `job` outlives it. `costs` has
  // lines of `bandoneon bench codecs --json`, or nothing.
  static absl::StatusOr<Replayer> Make(const JobTrace& job, std::string_view costs);

  // Replays the job as it was and, where any are given, with settings.
  absl::StatusOr<ReplayReport> Report(const ReplaySettings& settings) const;
  // Returns the median step with settings alone, by which plans are compared.
  absl::StatusOr<StepPrediction> Predict(const ReplaySettings& settings) const;

  const ReplayModel& model() const { return model_; }
  // Returns the recorded steps that are replayed.
  const StepTimes& recorded() const { return recorded_; }

 private:
  explicit Replayer(const JobTrace& job) : job_(&job) {}

  // Returns the allowance of a prediction's interval, as a share of the median.
  double Allowance(bool is_changed) const;

  const JobTrace* job_;
  ReplayModel model_;
  CodecCosts costs_;
  Busyness busyness_;
  StepTimes recorded_;
  std::vector<JobReport::KindTime> recorded_path_;
  StepTimes same_;  // the recorded settings, replayed; without exposed_ns
};

// Returns the times of a recording's whole steps: what a job was measured to take. Errors are those
// of MakeReplayModel.
absl::StatusOr<StepTimes> MeasuredSteps(const JobTrace& job);

// Return a report for people, and as a JSON object.
std::string ReplayText(const ReplayReport& report);
std::string ReplayJson(const ReplayReport& report);

}  // namespace bdn

#endif  // BANDONEON_REPLAY_REPLAY_REPORT_H_
