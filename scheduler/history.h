#ifndef BANDONEON_SCHEDULER_HISTORY_H_
#define BANDONEON_SCHEDULER_HISTORY_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "common/cluster/control_plane.h"
#include "scheduler/curve.h"

namespace bdn {

// What a job went through, for people: what happened, how fast it goes, how long the stages of each node took
// lately, and what its programs report. All of it is bounded, however long the job is: about 10 MB where it
// has as many nodes as it may. Not thread-safe; time is an argument and never goes back.
class History {
 public:
  struct Event {
    absl::Time when;
    const char* kind;  // a constant: "joined"
    std::string text;
  };
  static constexpr size_t kMostEvents = 200;
  static constexpr size_t kMostTextBytes = 500;  // of one event

  using WallTimes = std::array<uint64_t, kNumStages>;  // nanoseconds, by Stage

  // Of a node, its last steps: about kWindowSteps, or fewer where it has fewer or tells of more at a time.
  struct Window {
    NodeId node = 0;
    uint64_t steps = 0;  // at least 1
    WallTimes wall_ns = {};
  };
  static constexpr uint64_t kWindowSteps = 100;

  // `num_nodes` is how many the job is to have.
  explicit History(int num_nodes);

  void Happened(absl::Time now, const char* kind, std::string text);
  // With every heartbeat.
  void Progressed(absl::Time now, NodeId node, Role role, const NodeProgress& progress);
  // All that the node has measured.
  void Measured(NodeId node, Role role, std::vector<QualityGroup> groups);
  // Names beyond kMostReportNames are left out, and an event says so, once.
  void Reported(absl::Time now, const std::vector<ReportedValue>& values);

  const std::deque<Event>& events() const { return events_; }  // the latest last
  // Of the fastest worker, in the last ten seconds. Nothing until two heartbeats told of it.
  std::optional<double> StepsPerSecond() const;
  std::vector<Window> Windows() const;
  const std::map<std::string, Curve>& curves() const { return curves_; }
  // The worst of all nodes of the role, as they said last; of the workers that is pushes, of the servers replies.
  std::vector<QualityGroup> Quality(Role role) const;

 private:
  // Steps are counted as nodes end them: their numbers jump where a checkpoint is taken up.
  struct Pace {
    absl::Time when;
    uint64_t steps;
  };
  struct Sample {
    uint64_t steps;
    WallTimes wall_ns;
  };

  const uint64_t steps_apart_;  // of the samples that are kept
  std::deque<Event> events_;
  std::deque<Pace> pace_;
  std::map<NodeId, std::deque<Sample>> samples_;
  std::map<std::string, Curve> curves_;
  std::map<Role, std::map<NodeId, std::vector<QualityGroup>>> quality_;
  bool has_ignored_ = false;
};

}  // namespace bdn

#endif  // BANDONEON_SCHEDULER_HISTORY_H_
