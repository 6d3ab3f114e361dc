#include "scheduler/history.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"

namespace bdn {
namespace {

// The time over which the speed is a mean.
constexpr absl::Duration kPaceWindow = absl::Seconds(10);
// The least time between two entries from which the speed is computed.
constexpr absl::Duration kPaceInterval = absl::Milliseconds(500);

// The most samples of all nodes together, and the bounds for one node.
constexpr uint64_t kMostSamples = 32768;
constexpr uint64_t kMostOfNode = 10;
constexpr uint64_t kLeastOfNode = 2;

// Returns the steps between samples: the more nodes, the fewer samples of each, so that all
// together stay bounded.
uint64_t StepsApart(int num_nodes) {
  const uint64_t nodes = static_cast<uint64_t>(std::max(num_nodes, 1));
  return History::kWindowSteps / std::clamp(kMostSamples / nodes, kLeastOfNode, kMostOfNode);
}

History::WallTimes WallTimesOf(const StageCounts& stages) {
  History::WallTimes times;
  for (size_t i = 0; i < kNumStages; ++i) times[i] = stages.by_stage[i].wall_ns;
  return times;
}

bool NeverFalls(const History::WallTimes& before, const History::WallTimes& now) {
  for (size_t i = 0; i < kNumStages; ++i) {
    if (now[i] < before[i]) return false;
  }
  return true;
}

}  // namespace

History::History(int num_nodes) : steps_apart_(StepsApart(num_nodes)) {}

void History::Happened(absl::Time now, const char* kind, std::string text) {
  if (text.size() > kMostTextBytes) text.replace(kMostTextBytes, std::string::npos, " ...");
  events_.push_back({now, kind, std::move(text)});
  if (events_.size() > kMostEvents) events_.pop_front();
}

void History::Progressed(absl::Time now, NodeId node, Role role, const NodeProgress& progress) {
  if (role == Role::kWorker) {
    // The highest number of any worker, which never falls.
    const uint64_t steps =
        pace_.empty() ? progress.ended : std::max(pace_.back().steps, progress.ended);
    // The latest entry moves on until it is far enough from the one before, so that their number is
    // bounded.
    const size_t size = pace_.size();
    if (size >= 2 && pace_[size - 1].when - pace_[size - 2].when < kPaceInterval) pace_.pop_back();
    pace_.push_back({now, steps});
    while (pace_.size() > 2 && now - pace_[1].when >= kPaceWindow) pace_.pop_front();
  }
  std::deque<Sample>& samples = samples_[node];
  const Sample latest = {progress.ended, WallTimesOf(progress.stages)};
  // Totals never fall: where they do, the node counts anew, and must not be subtracted from older
  // ones.
  if (!samples.empty() && (latest.steps < samples.back().steps ||
                           !NeverFalls(samples.back().wall_ns, latest.wall_ns))) {
    samples.clear();
  }
  const size_t size = samples.size();
  if (size >= 2 && samples[size - 1].steps - samples[size - 2].steps < steps_apart_) {
    samples.pop_back();
  }
  samples.push_back(latest);
  while (samples.size() > 2 && latest.steps - samples[1].steps >= kWindowSteps) samples.pop_front();
}

void History::Reported(absl::Time now, const std::vector<ReportedValue>& values) {
  for (const ReportedValue& value : values) {
    auto curve = curves_.find(value.name);
    if (curve == curves_.end() && curves_.size() >= kMostReportNames) {
      if (std::exchange(has_ignored_, true)) continue;
      Happened(now, "ignored",
               absl::StrFormat("report '%s': the job has %d names, which is the most there may be",
                               value.name, kMostReportNames));
      continue;
    }
    if (curve == curves_.end()) curve = curves_.try_emplace(value.name).first;
    curve->second.Add(value.step, value.value);
  }
}

void History::Measured(NodeId node, Role role, std::vector<QualityGroup> groups) {
  quality_[role][node] = std::move(groups);
}

std::vector<QualityGroup> History::Quality(Role role) const {
  const auto nodes = quality_.find(role);
  if (nodes == quality_.end()) return {};
  std::vector<std::vector<QualityGroup>> all;
  for (const auto& [node, groups] : nodes->second) all.push_back(groups);
  return JoinGroups(all);
}

std::optional<double> History::StepsPerSecond() const {
  if (pace_.size() < 2) return std::nullopt;
  const double seconds = absl::ToDoubleSeconds(pace_.back().when - pace_.front().when);
  if (seconds <= 0) return std::nullopt;
  return static_cast<double>(pace_.back().steps - pace_.front().steps) / seconds;
}

std::vector<History::Window> History::Windows() const {
  std::vector<Window> windows;
  for (const auto& [node, samples] : samples_) {
    const Sample& first = samples.front();
    const Sample& last = samples.back();
    // There is no step between the samples to divide by.
    if (last.steps == first.steps) continue;
    Window window = {.node = node, .steps = last.steps - first.steps};
    for (size_t i = 0; i < kNumStages; ++i) {
      window.wall_ns[i] = last.wall_ns[i] - first.wall_ns[i];
    }
    windows.push_back(window);
  }
  return windows;
}

}  // namespace bdn
