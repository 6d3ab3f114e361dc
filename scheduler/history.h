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

// The history of a job, for people to read: its events, its speed, the time that the phases of each
// node took lately, and the values that its programs report. All of it is bounded, however long the
// job is: about 10 MB where it has as many nodes as it may. Not thread-safe; time is an argument
// and never goes back.
class History {
 public:
  // One event of the job.
  struct Event {
    absl::Time when;
    const char* kind;  // a constant: "joined"
    std::string text;
  };
  static constexpr size_t kMostEvents = 200;
  static constexpr size_t kMostTextBytes = 500;  // of one event

  using WallTimes = std::array<uint64_t, kNumStages>;  // nanoseconds, by Stage

  // The last steps of one node: about kWindowSteps, or fewer where it has fewer or reports more at
  // a time.
  struct Window {
    NodeId node = 0;
    uint64_t steps = 0;  // at least 1
    WallTimes wall_ns = {};
  };
  static constexpr uint64_t kWindowSteps = 100;

  // `num_nodes` is the number of nodes that the job is to have.
  explicit History(int num_nodes);

  // Adds an event, cut to kMostTextBytes; the oldest goes where there are more than kMostEvents.
  void Happened(absl::Time now, const char* kind, std::string text);
  // Takes the progress of a heartbeat.
  void Progressed(absl::Time now, NodeId node, Role role, const NodeProgress& progress);
  // Takes all measurements of the node, in place of those before.
  void Measured(NodeId node, Role role, std::vector<QualityGroup> groups);
  // Takes reported values. Names beyond kMostReportNames are left out, and one event says so.
  void Reported(absl::Time now, const std::vector<ReportedValue>& values);

  const std::deque<Event>& events() const { return events_; }  // latest last
  // Returns the speed of the fastest worker in the last ten seconds; nothing until two heartbeats
  // have reported steps.
  std::optional<double> StepsPerSecond() const;
  std::vector<Window> Windows() const;
  const std::map<std::string, Curve>& curves() const { return curves_; }
  // Returns the worst of all nodes of the role, as they reported last: of pushes for workers, of
  // replies for servers.
  std::vector<QualityGroup> Quality(Role role) const;

 private:
  // The steps that had ended at one time. They are counted as nodes end them, because their numbers
  // jump where a checkpoint is taken up.
  struct Pace {
    absl::Time when;
    uint64_t steps;
  };
  // The total times of a node's phases after so many steps.
  struct Sample {
    uint64_t steps;
    WallTimes wall_ns;
  };

  const uint64_t steps_apart_;  // between two samples that are kept
  std::deque<Event> events_;
  std::deque<Pace> pace_;
  std::map<NodeId, std::deque<Sample>> samples_;
  std::map<std::string, Curve> curves_;
  std::map<Role, std::map<NodeId, std::vector<QualityGroup>>> quality_;
  bool has_ignored_ = false;
};

}  // namespace bdn

#endif  // BANDONEON_SCHEDULER_HISTORY_H_
