#ifndef BANDONEON_COMMON_TELEMETRY_SUSPECTS_H_
#define BANDONEON_COMMON_TELEMETRY_SUSPECTS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "common/base/ids.h"
#include "common/telemetry/stage_times.h"
#include "common/telemetry/work_counts.h"

namespace bdn {

// Why a node, or a host, slows its job. docs/troubleshooting.md (A slow job) explains each.
enum class SuspectKind : uint8_t {
  kCompute = 0,     // its passes take longer
  kInput = 1,       // what is between its steps takes longer
  kCollection = 2,  // the garbage collector takes longer
  kHost = 3,        // of a host: threads that train wait for a processor
  kLink = 4,        // frames to and from it take longer
  kServer = 5,      // a server works longer on its keys
  kStalled = 6,     // it is not heard, or exchanges nothing
};
inline constexpr size_t kNumSuspectKinds = 7;
std::string_view SuspectKindName(SuspectKind kind);  // "gc"

// A node, as verdicts name it.
struct SuspectNode {
  NodeId node = 0;
  Role role = Role::kWorker;
  Rank rank = 0;
  std::string host;  // "hostname:pid"
};
// Returns the part of a node's host that all nodes of one machine have.
std::string_view MachineOf(std::string_view host);

// The work of a node in some of its steps.
struct WorkRates {
  uint64_t steps = 0;
  double step_seconds = 0;  // from one step's end to the next
  // Of a worker's program, in seconds a step; nothing where it marks no steps.
  struct Program {
    double compute = 0;
    double input = 0;
    double collection = 0;
    double queued = 0;
  };
  std::optional<Program> program;
  struct Peer {
    double seconds = 0;  // an item, as PeerWait
    double items = 0;    // a step
  };
  std::map<Rank, Peer> peers;
  // Of a server: seconds a round for which pushes were held, and for which it worked; and the
  // rounds and bytes of a step.
  double hold_seconds = 0;
  double work_seconds = 0;
  double rounds = 0;
  double bytes = 0;
  double machine_busy = 0;  // of all processors of the machine: from 0 to 1
  double machine_processors = 0;
  double own_processors = 0;  // so many of them the process has used
};
// A node's latest steps: all of them, and their two halves.
struct NodeWindow {
  SuspectNode who;
  WorkRates whole;
  WorkRates older;
  WorkRates newer;
  // Whether its steps took about the same time each. Otherwise one long step may lie in this node's
  // window and not in another's, and waits of the two cannot be set against each other.
  bool is_even = true;
};

// One node's time of one kind.
struct HeatCell {
  SuspectKind kind = SuspectKind::kCompute;
  // A step. Of a worker's link: an item, by how much it is above that of its peers; of a server and
  // its link: a round, and an item.
  double seconds = 0;
  double share = 0;  // by so much of a step it is above that of its peers; may be negative
};
struct HeatRow {
  SuspectNode who;
  std::vector<HeatCell> cells;
};

// A place that is found slow: a node by its number, or a host (then `who` has only the host).
struct Finding {
  SuspectNode who;
  SuspectKind kind = SuspectKind::kCompute;
  double seconds = 0;
  double share = 0;
  double margin = 1;   // how many times as long it is as what would stand out
  std::string detail;  // more for the sentence; may be empty
};
using SuspectId = std::pair<std::string, SuspectKind>;  // PlaceName, kind
// Returns "worker 3" or "host NAME".
std::string PlaceName(const SuspectNode& who);

// The usual times so far.
struct UsualTimes {
  std::map<SuspectId, double> seconds;  // of a node
  std::map<SuspectId, double> bytes;    // a step, of a server at those times
  // By how much nodes change beside their peers from window to window: a standard deviation.
  std::map<SuspectKind, double> spread;
};

struct Assessment {
  std::vector<Finding> findings;
  std::vector<HeatRow> heat;
  struct Now {
    double seconds = 0;
    double excess = 0;  // over the node's peers
    double bytes = 0;   // of a server: a step
  };
  std::map<SuspectId, Now> now;
};
// Compares nodes by their windows. A node stands out where a time of its is longer than that of its
// peers by more than a twentieth of a step, a twentieth of itself, five times the spread of nodes
// now or so far, and twice its own wait for a processor, in the mean and in both halves of the
// window. With one peer alone it must be longer than its own past, too. Those of `standing` stay
// with half of that. At most one kind a node.
Assessment Assess(const std::vector<NodeWindow>& windows, const UsualTimes& usual,
                  const std::set<SuspectId>& standing);

// A verdict that stands.
struct Suspect {
  Finding finding;
  absl::Time since;
};

// The watch over a job's nodes: it keeps windows of what their heartbeats say, and verdicts that do
// not flicker. A verdict begins when it holds for two heartbeats, or as long as another window
// where it is not clear, and ends when it has not held for four. After somebody stalled all windows
// begin anew, because everybody's steps were long. Not thread-safe; time is an argument.
class SuspectWatch {
 public:
  // The steps, and the heartbeats, that a window has at least.
  static constexpr uint64_t kWindowSteps = 16;
  static constexpr size_t kWindowBeats = 4;

  // The beginning or the end of a verdict.
  struct Change {
    bool begins = true;
    Suspect suspect;
  };

  // `takes_part` says of a node that was heard whether it still takes part in steps.
  SuspectWatch(absl::Duration heartbeat_interval, std::function<bool(NodeId)> takes_part)
      : interval_(heartbeat_interval), takes_part_(std::move(takes_part)) {}

  // Takes a heartbeat: the node has ended so many steps since it joined.
  void Heard(absl::Time now, const SuspectNode& who, uint64_t ended, const StageCounts& stages,
             const WorkCounts& work);
  // Begins all windows anew, because no node could be heard: the scheduler itself stood still.
  void WasHeldUp(absl::Duration pause);
  std::vector<Change> TakeChanges() { return std::exchange(changes_, {}); }
  const std::map<SuspectId, Suspect>& suspects() const { return suspects_; }
  const std::vector<HeatRow>& heat() const { return heat_; }

 private:
  struct Sample {
    absl::Time when;
    uint64_t ended = 0;
    StageCounts stages;
    WorkCounts work;
  };
  struct Node {
    SuspectNode who;
    std::deque<Sample> samples;
    absl::Time heard;
    absl::Time ended_at;  // when its last step was heard of
    uint64_t ended = 0;
    uint64_t open_requests = 0;
    uint64_t open_before = 0;  // at the heartbeat before
  };

  static std::optional<NodeWindow> WindowOf(const Node& node);
  void AddSample(absl::Time now, uint64_t ended, const StageCounts& stages, const WorkCounts& work,
                 Node* node);
  void ForgetGone();
  void Judge(absl::Time now);
  std::vector<Finding> Stalled(absl::Time now) const;
  void Raise(absl::Time now, const Finding& finding);
  void Clear(const SuspectId& id);
  void Learn(std::map<SuspectId, Assessment::Now> now);

  const absl::Duration interval_;
  const std::function<bool(NodeId)> takes_part_;
  absl::Time judged_ = absl::InfinitePast();
  std::map<NodeId, Node> nodes_;
  UsualTimes usual_;
  std::map<SuspectKind, int> learnt_;                        // so many times
  std::deque<std::map<SuspectId, Assessment::Now>> latest_;  // from which nothing is learnt yet
  struct Hits {
    int count = 0;  // in a row
    absl::Time since;
    uint64_t step = 0;  // at the first
  };
  std::map<SuspectId, Hits> hits_;
  std::map<SuspectId, int> misses_;  // in a row, of suspects
  std::map<SuspectId, Suspect> suspects_;
  std::vector<Change> changes_;
  std::vector<HeatRow> heat_;
};

// Returns the verdict for people: place, host, kind, by how much, since when, and what to do.
std::string SentenceOf(const Suspect& suspect, absl::Time now);

}  // namespace bdn

#endif  // BANDONEON_COMMON_TELEMETRY_SUSPECTS_H_
