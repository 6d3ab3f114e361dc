#include "common/telemetry/suspects.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace bdn {
namespace {

constexpr std::string_view kKindNames[] = {"compute", "input",  "gc",     "host",
                                           "link",    "server", "stalled"};
static_assert(std::size(kKindNames) == kNumSuspectKinds);

// A node stands out where its time exceeds all of these bounds: see Assess.
constexpr double kLeastShare = 0.05;  // of a step, and of the peers' time of this kind
constexpr double kSpreads = 5;
constexpr double kQueuedTwice = 2;
constexpr double kOfHalves = 0.6;  // each half of a window is to exceed so much of it
constexpr double kToStay = 0.5;
// A machine on which threads wait for so much of a step is busy.
constexpr double kBusyShare = 0.1;
// Differences between exchanges that are shorter, in seconds, are not told from noise.
constexpr double kLeastLink = 1e-3;
// A server's own time must have grown to so much of its past, or be so much of comparable servers'.
constexpr double kServerGrowth = 1.5;
// Servers are comparable where their rounds and bytes a step differ by no more.
constexpr double kComparable = 0.25;
// Workers have the same keys where their items a step differ by no more.
constexpr double kSameKeys = 0.15;
// On a fuller machine threads that move frames, or are a server's, are likely to wait for a
// processor, which nothing counts: then differences are to be so many times as long.
constexpr double kFullMachine = 0.85;
constexpr double kFullTimes = 3;

constexpr int kHitsToBegin = 2;
// A finding with a smaller margin may be chance: it is to hold for another window.
constexpr double kClearMargin = 1.5;
// The spread of a time is taken over so many of the latest judgements.
constexpr int kMemory = 64;
// Judgements that are so many apart have windows without common heartbeats; and what is learnt is
// so much older.
constexpr size_t kApart = 6;
constexpr size_t kDelay = 8;
// Windows with a gap that is by so many steps too long are not even.
constexpr double kGapSteps = 1.5;
constexpr int kMissesToEnd = 4;
constexpr size_t kMostSamples = 64;
// The first steps of a program allocate, compile and connect.
constexpr uint64_t kWarmUpSteps = 2;
// A node is silent when it was not heard for so many heartbeats, and for so long.
constexpr double kSilentBeats = 2.5;
constexpr absl::Duration kLeastSilence = absl::Seconds(2);
// Steps stand still when the last one has ended so many steps ago, and so long.
constexpr double kStillSteps = 10;
constexpr absl::Duration kLeastStill = absl::Seconds(3);
// The detail of a stalled node that is heard.
constexpr std::string_view kPushedNothing = "pushed nothing";
// A node that was silent is shown for so long after it was heard again.
constexpr absl::Duration kShownAfter = absl::Seconds(10);

double Median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  if (values.size() % 2 == 1) return *middle;
  return (*middle + *std::max_element(values.begin(), middle)) / 2;
}

// The times of one kind at all nodes that can be compared, from which a node's peers are those
// without it.
class Times {
 public:
  struct Time {
    double whole = 0;
    double older = 0;
    double newer = 0;
  };

  explicit Times(std::vector<Time> times) : times_(std::move(times)) {
    std::vector<double> changes;
    for (const Time& time : times_) {
      whole_.push_back(time.whole);
      older_.push_back(time.older);
      newer_.push_back(time.newer);
      changes.push_back(std::abs(time.older - time.newer) / 2);
    }
    for (auto* each : {&whole_, &older_, &newer_}) std::sort(each->begin(), each->end());
    const double middle = Median(whole_);
    std::vector<double> deviations;
    for (const double value : whole_) deviations.push_back(std::abs(value - middle));
    spread_ = Median(std::move(changes));
    // The median of two values is as far from one as from the other, so it tells nothing of them.
    if (times_.size() > 2) spread_ = std::max(spread_, 1.4826 * Median(std::move(deviations)));
  }

  size_t size() const { return times_.size(); }
  const Time& operator[](size_t i) const { return times_[i]; }
  // Returns the median of all but one.
  Time PeersOf(size_t i) const {
    return {Without(whole_, times_[i].whole), Without(older_, times_[i].older),
            Without(newer_, times_[i].newer)};
  }
  double spread() const { return spread_; }

 private:
  static double Without(const std::vector<double>& sorted, double value) {
    const size_t left = sorted.size() - 1;
    const auto at =
        static_cast<size_t>(std::lower_bound(sorted.begin(), sorted.end(), value) - sorted.begin());
    const auto of = [&](size_t i) { return sorted[i < at ? i : i + 1]; };
    return left % 2 == 1 ? of(left / 2) : (of(left / 2) + of(left / 2 - 1)) / 2;
  }

  std::vector<Time> times_;
  std::vector<double> whole_;
  std::vector<double> older_;
  std::vector<double> newer_;
  double spread_ = 0;
};

SuspectId IdOf(const SuspectNode& who, SuspectKind kind) { return {PlaceName(who), kind}; }

// One assessment, in the making.
class Assessor {
 public:
  Assessor(const std::vector<NodeWindow>& windows, const UsualTimes& usual,
           const std::set<SuspectId>& standing)
      : usual_(usual), standing_(standing) {
    std::vector<double> steps;
    for (const NodeWindow& window : windows) {
      (window.who.role == Role::kServer ? servers_ : workers_).push_back(&window);
      steps.push_back(window.whole.step_seconds);
      if (!window.is_even) ++uneven_;
    }
    step_ = Median(std::move(steps));
  }

  Assessment Run() {
    if (step_ <= 0) return {};
    Program(SuspectKind::kCompute, &WorkRates::Program::compute);
    Program(SuspectKind::kInput, &WorkRates::Program::input);
    Program(SuspectKind::kCollection, &WorkRates::Program::collection);
    Hosts();
    if (uneven_ * 4 <= workers_.size() + servers_.size()) {
      WorkersLinks();
      Servers();
    }
    for (auto& [place, finding] : slowest_) result_.findings.push_back(std::move(finding));
    for (auto& [place, row] : rows_) result_.heat.push_back(std::move(row));
    return std::move(result_);
  }

 private:
  using Windows = std::vector<const NodeWindow*>;

  static double QueuedOf(const NodeWindow& window) {
    return window.whole.program.has_value() ? window.whole.program->queued : 0;
  }

  void Heat(const SuspectNode& who, SuspectKind kind, double seconds, double excess) {
    HeatRow& row = rows_[PlaceName(who)];
    row.who = who;
    row.cells.push_back({kind, seconds, excess / step_});
  }

  void Found(Finding finding) {
    Finding& slowest = slowest_[PlaceName(finding.who)];
    if (finding.share > slowest.share) slowest = std::move(finding);
  }

  // Finds who stands out among nodes of which each has a time. With `is_difference` the times are
  // no amounts: they mean something only beside each other.
  void Compare(SuspectKind kind, const Windows& nodes, const Times& times, bool is_difference) {
    const auto so_far = usual_.spread.find(kind);
    double spread = times.spread();
    const bool is_known = so_far != usual_.spread.end();
    if (is_known) spread = std::max(spread, so_far->second);
    for (size_t i = 0; i < nodes.size(); ++i) {
      const SuspectNode& who = nodes[i]->who;
      const SuspectId id = IdOf(who, kind);
      const bool stands = standing_.contains(id);
      if (times.size() < 2) {
        if (!is_difference) Heat(who, kind, times[i].whole, 0);
        continue;
      }
      Times::Time peers = times.PeersOf(i);
      const double excess = times[i].whole - peers.whole;
      Heat(who, kind, is_difference ? excess : times[i].whole, excess);
      result_.now[id] = {is_difference ? excess : times[i].whole, excess};
      double own = excess;
      if (times.size() == 2) {
        // One of two differs from the other, and nobody knows which is right, unless it differs
        // from itself.
        const auto before = usual_.seconds.find(id);
        if (before == usual_.seconds.end()) continue;
        own = (is_difference ? excess : times[i].whole) - before->second;
      }
      double least = std::max({kLeastShare * step_, kSpreads * spread,
                               is_difference ? kLeastLink : kLeastShare * peers.whole});
      least += kQueuedTwice * QueuedOf(*nodes[i]);
      if (is_difference && nodes[i]->whole.machine_busy > kFullMachine) least *= kFullTimes;
      if (stands) least *= kToStay;
      if (!is_known || (is_difference && !nodes[i]->is_even)) continue;
      const double older = times[i].older - peers.older;
      const double newer = times[i].newer - peers.newer;
      if (std::min(excess, own) < least || std::min(older, newer) < kOfHalves * least) continue;
      Found({who, kind, excess, excess / step_, std::min(excess, own) / least, ""});
    }
  }

  void Program(SuspectKind kind, double WorkRates::Program::*time) {
    Windows nodes;
    std::vector<Times::Time> times;
    for (const NodeWindow* worker : workers_) {
      const auto& whole = worker->whole.program;
      const auto& older = worker->older.program;
      const auto& newer = worker->newer.program;
      if (!whole.has_value() || !older.has_value() || !newer.has_value()) continue;
      nodes.push_back(worker);
      times.push_back({(*whole).*time, (*older).*time, (*newer).*time});
    }
    Compare(kind, nodes, Times(std::move(times)), /*is_difference=*/false);
  }

  // A host is busy where a thread that trains there waits for a processor.
  void Hosts() {
    std::map<std::string, Windows, std::less<>> hosts;
    for (const NodeWindow* worker : workers_) {
      if (!worker->whole.program.has_value()) continue;
      Heat(worker->who, SuspectKind::kHost, QueuedOf(*worker), QueuedOf(*worker));
      hosts[std::string(MachineOf(worker->who.host))].push_back(worker);
    }
    for (const auto& [host, nodes] : hosts) {
      const NodeWindow& worst = **std::max_element(
          nodes.begin(), nodes.end(),
          [](const auto* a, const auto* b) { return QueuedOf(*a) < QueuedOf(*b); });
      Finding finding = {.who = {.node = 0, .role = Role::kWorker, .rank = -1, .host = host},
                         .kind = SuspectKind::kHost,
                         .seconds = QueuedOf(worst),
                         .share = QueuedOf(worst) / step_,
                         .margin = 1,
                         .detail = ""};
      double least = kBusyShare * step_;
      if (standing_.contains(IdOf(finding.who, finding.kind))) least *= kToStay;
      const auto queued = [](const WorkRates& part) {
        return part.program.has_value() ? part.program->queued : 0;
      };
      if (finding.seconds < least ||
          std::min(queued(worst.older), queued(worst.newer)) < kOfHalves * least) {
        continue;
      }
      finding.margin = finding.seconds / least;
      finding.detail = absl::StrFormat("%s waits most; %s", PlaceName(worst.who), UsersOf(host));
      Found(std::move(finding));
    }
  }

  // Returns who uses the processors of a host.
  std::string UsersOf(std::string_view host) const {
    double own = 0;
    double busy = 0;
    double processors = 0;
    for (const Windows* windows : {&workers_, &servers_}) {
      for (const NodeWindow* window : *windows) {
        if (MachineOf(window->who.host) != host) continue;
        own += window->whole.own_processors;
        busy = std::max(busy, window->whole.machine_busy);
        processors = std::max(processors, window->whole.machine_processors);
      }
    }
    if (processors <= 0) return "what else runs there is not known";
    return absl::StrFormat("of %.0f processors this job uses %.1f and other programs use %.1f",
                           processors, own, std::max(0.0, busy * processors - own));
  }

  // The way of a worker's push to a server and of the reply back, without what others do: the
  // worker's wait, and by how much its push came after the first one. Who pushes late waits less,
  // so that the sum is as long for a worker that computes slowly as for any. It has the time from
  // a round's first push to its reply in it, which is the same for all of the server's workers.
  static std::optional<double> WayOf(const WorkRates& worker, Rank worker_rank,
                                     const WorkRates& server, Rank server_rank) {
    const auto wait = worker.peers.find(server_rank);
    const auto late = server.peers.find(worker_rank);
    if (wait == worker.peers.end() || late == server.peers.end()) return std::nullopt;
    return wait->second.seconds + late->second.seconds;
  }

  static std::optional<Times::Time> WayOf(const NodeWindow& worker, const NodeWindow& server) {
    const Rank from = worker.who.rank;
    const Rank to = server.who.rank;
    const auto whole = WayOf(worker.whole, from, server.whole, to);
    const auto older = WayOf(worker.older, from, server.older, to);
    const auto newer = WayOf(worker.newer, from, server.newer, to);
    if (!whole.has_value() || !older.has_value() || !newer.has_value()) return std::nullopt;
    return Times::Time{*whole, *older, *newer};
  }

  // A worker's link is slow where its ways to servers are longer than those of other workers: the
  // mean over servers of the differences, as all frames take the same link.
  void WorkersLinks() {
    Windows nodes;
    for (const NodeWindow* worker : workers_) {
      const bool has_all = std::all_of(servers_.begin(), servers_.end(), [&](const auto* server) {
        return WayOf(*worker, *server).has_value();
      });
      if (has_all) nodes.push_back(worker);
    }
    if (servers_.empty()) return;
    // Workers of other groups of ranks have other keys, and other waits.
    for (const NodeWindow* server : servers_) {
      const auto items = [server](const NodeWindow* worker) {
        return worker->whole.peers.at(server->who.rank).items;
      };
      std::vector<double> all;
      for (const NodeWindow* worker : nodes) all.push_back(items(worker));
      const double usual = Median(std::move(all));
      std::erase_if(nodes, [&](const NodeWindow* worker) {
        return std::abs(items(worker) - usual) > kSameKeys * usual;
      });
    }
    if (nodes.size() < 2) return;
    std::vector<Times::Time> sums(nodes.size());
    for (const NodeWindow* server : servers_) {
      std::vector<Times::Time> ways;
      for (const NodeWindow* worker : nodes) ways.push_back(*WayOf(*worker, *server));
      const double servers = static_cast<double>(servers_.size());
      for (size_t i = 0; i < nodes.size(); ++i) {
        sums[i].whole += ways[i].whole / servers;
        sums[i].older += ways[i].older / servers;
        sums[i].newer += ways[i].newer / servers;
      }
    }
    Compare(SuspectKind::kLink, nodes, Times(std::move(sums)), /*is_difference=*/true);
  }

  // Returns the seconds that frames between a server and the middle one of its workers take, both
  // ways, with what processes take to hand them on: of the worker's wait what is neither the
  // others' lateness nor the server's work.
  double LinkOf(const NodeWindow& server, WorkRates NodeWindow::*part) const {
    std::vector<double> ways;
    double late = 0;
    size_t peers = 0;
    for (const NodeWindow* worker : workers_) {
      const auto way = WayOf(worker->*part, worker->who.rank, server.*part, server.who.rank);
      if (way.has_value()) ways.push_back(*way);
    }
    for (const auto& [rank, peer] : (server.*part).peers) {
      late += peer.seconds;
      ++peers;
    }
    if (ways.empty() || peers == 0) return -1;
    // Pushes are held from when they come to the last one; so many seconds after the first one
    // that is, on the mean.
    const double last = (server.*part).hold_seconds + late / static_cast<double>(peers);
    return std::max(0.0, Median(std::move(ways)) - last - (server.*part).work_seconds);
  }

  static bool AreAlike(double x, double y) {
    return std::abs(x - y) <= kComparable * std::max(x, y);
  }
  static bool AreComparable(const WorkRates& a, const WorkRates& b) {
    return AreAlike(a.rounds, b.rounds) && AreAlike(a.bytes, b.bytes);
  }

  void Servers() {
    const auto link = [this](const NodeWindow& server, WorkRates NodeWindow::*part) {
      return LinkOf(server, part);
    };
    const auto work = [](const NodeWindow& server, WorkRates NodeWindow::*part) {
      return (server.*part).rounds > 0 ? (server.*part).work_seconds : -1;
    };
    CompareServers(SuspectKind::kServer, work);
    CompareServers(SuspectKind::kLink, link);
  }

  // Servers have other keys than each other, so one stands out beside comparable ones, or beside
  // its own past where the others stayed as they were.
  template <typename TimeOf>
  void CompareServers(SuspectKind kind, TimeOf time_of) {
    std::vector<double> growths;
    std::vector<double> times;
    for (const NodeWindow* server : servers_) {
      const double time = time_of(*server, &NodeWindow::whole);
      times.push_back(time);
      const auto before = usual_.seconds.find(IdOf(server->who, kind));
      const bool is_known = before != usual_.seconds.end() && before->second > 0 && time >= 0;
      growths.push_back(is_known ? time / before->second : 1);
    }
    for (size_t i = 0; i < servers_.size(); ++i) {
      if (times[i] < 0) continue;
      const NodeWindow& server = *servers_[i];
      const SuspectId id = IdOf(server.who, kind);
      std::vector<double> comparable;
      std::vector<double> other_growths;
      for (size_t j = 0; j < servers_.size(); ++j) {
        if (j == i || times[j] < 0) continue;
        other_growths.push_back(growths[j]);
        if (AreComparable(server.whole, servers_[j]->whole)) comparable.push_back(times[j]);
      }
      // The usual time of this server is that of comparable ones, or its own of before.
      std::optional<double> usual;
      if (!comparable.empty()) {
        usual = Median(comparable);
      } else if (const auto before = usual_.seconds.find(id);
                 before != usual_.seconds.end() && !other_growths.empty() &&
                 AreAlike(usual_.bytes.at(id), server.whole.bytes)) {
        // A server that holds other keys than before has no past of its own.
        usual = before->second * std::max(1.0, Median(other_growths));
      }
      const double excess = usual.has_value() ? times[i] - *usual : 0;
      result_.now[id] = {times[i], excess, server.whole.bytes};
      Heat(server.who, kind, times[i], excess);
      const auto so_far = usual_.spread.find(kind);
      if (!usual.has_value() || !server.is_even || so_far == usual_.spread.end()) continue;
      double least = std::max({kLeastShare * step_, kSpreads * so_far->second, kLeastLink,
                               (kServerGrowth - 1) * *usual});
      if (server.whole.machine_busy > kFullMachine) least *= kFullTimes;
      if (standing_.contains(id)) least *= kToStay;
      const double half =
          std::min(time_of(server, &NodeWindow::older), time_of(server, &NodeWindow::newer)) -
          *usual;
      if (excess < least || half < kOfHalves * least) continue;
      Found({server.who, kind, excess, excess / step_, excess / least, ""});
    }
  }

  const UsualTimes& usual_;
  const std::set<SuspectId>& standing_;
  Windows workers_;
  Windows servers_;
  double step_ = 0;
  size_t uneven_ = 0;
  std::map<std::string, Finding> slowest_;  // by place
  std::map<std::string, HeatRow> rows_;
  Assessment result_;
};

double SecondsOf(uint64_t ns) { return static_cast<double>(ns) * 1e-9; }

bool NeverFalls(const StageCounts& a, const StageCounts& b) {
  for (size_t i = 0; i < kNumStages; ++i) {
    const StageCount& before = a.by_stage[i];
    const StageCount& now = b.by_stage[i];
    if (now.items < before.items || now.wall_ns < before.wall_ns || now.bytes < before.bytes) {
      return false;
    }
  }
  return true;
}

bool NeverFalls(const WorkCounts& a, const WorkCounts& b) {
  if (a.peers.size() > b.peers.size()) return false;
  for (const PeerWait& before : a.peers) {
    const auto now = std::find_if(b.peers.begin(), b.peers.end(),
                                  [&](const PeerWait& peer) { return peer.rank == before.rank; });
    if (now == b.peers.end() || now->items < before.items || now->ns < before.ns) return false;
  }
  return b.program.steps >= a.program.steps && b.program.compute_ns >= a.program.compute_ns &&
         b.program.input_ns >= a.program.input_ns &&
         b.program.collection_ns >= a.program.collection_ns &&
         b.program.queued_ns >= a.program.queued_ns && b.machine_busy_ns >= a.machine_busy_ns &&
         b.machine_idle_ns >= a.machine_idle_ns && b.process_cpu_ns >= a.process_cpu_ns;
}

// Returns what lies between two samples, of which the later one has more steps.
template <typename Sample>
WorkRates RatesBetween(const Sample& from, const Sample& to) {
  WorkRates rates;
  rates.steps = to.ended - from.ended;
  const double seconds = absl::ToDoubleSeconds(to.when - from.when);
  const auto steps = static_cast<double>(rates.steps);
  rates.step_seconds = seconds / steps;
  const ProgramTimes& before = from.work.program;
  const ProgramTimes& now = to.work.program;
  if (now.steps > before.steps) {
    const auto marked = static_cast<double>(now.steps - before.steps);
    rates.program = {.compute = SecondsOf(now.compute_ns - before.compute_ns) / marked,
                     .input = SecondsOf(now.input_ns - before.input_ns) / marked,
                     .collection = SecondsOf(now.collection_ns - before.collection_ns) / marked,
                     .queued = SecondsOf(now.queued_ns - before.queued_ns) / marked};
  }
  for (const PeerWait& peer : to.work.peers) {
    PeerWait past = {.rank = peer.rank};
    for (const PeerWait& each : from.work.peers) {
      if (each.rank == peer.rank) past = each;
    }
    if (peer.items == past.items) continue;
    const auto items = static_cast<double>(peer.items - past.items);
    rates.peers[peer.rank] = {SecondsOf(peer.ns - past.ns) / items, items / steps};
  }
  const auto stage = [&](Stage name) {
    const StageCount& a = from.stages[name];
    const StageCount& b = to.stages[name];
    return StageCount{b.items - a.items, b.bytes - a.bytes, b.wall_ns - a.wall_ns, 0};
  };
  const StageCount hold = stage(Stage::kHold);
  const StageCount encode = stage(Stage::kEncode);  // of a server: once a round
  if (hold.items > 0 && encode.items > 0) {
    const auto rounds = static_cast<double>(encode.items);
    rates.hold_seconds = SecondsOf(hold.wall_ns) / static_cast<double>(hold.items);
    rates.work_seconds =
        SecondsOf(stage(Stage::kSum).wall_ns + stage(Stage::kRule).wall_ns + encode.wall_ns) /
        rounds;
    rates.rounds = rounds / steps;
    rates.bytes = static_cast<double>(hold.bytes) / steps;
  }
  const double busy = SecondsOf(to.work.machine_busy_ns - from.work.machine_busy_ns);
  const double idle = SecondsOf(to.work.machine_idle_ns - from.work.machine_idle_ns);
  if (busy + idle > 0 && seconds > 0) {
    rates.machine_busy = busy / (busy + idle);
    rates.machine_processors = (busy + idle) / seconds;
    rates.own_processors = SecondsOf(to.work.process_cpu_ns - from.work.process_cpu_ns) / seconds;
  }
  return rates;
}

}  // namespace

std::string_view SuspectKindName(SuspectKind kind) { return kKindNames[static_cast<size_t>(kind)]; }

std::string_view MachineOf(std::string_view host) { return host.substr(0, host.rfind(':')); }

std::string PlaceName(const SuspectNode& who) {
  if (who.node == 0) return absl::StrFormat("host %s", MachineOf(who.host));
  return absl::StrFormat("%s %d", RoleName(who.role), who.rank);
}

Assessment Assess(const std::vector<NodeWindow>& windows, const UsualTimes& usual,
                  const std::set<SuspectId>& standing) {
  return Assessor(windows, usual, standing).Run();
}

void SuspectWatch::Heard(absl::Time now, const SuspectNode& who, uint64_t ended,
                         const StageCounts& stages, const WorkCounts& work) {
  Node& node = nodes_[who.node];
  const bool is_new = node.who.node == 0;
  node.who = who;
  node.heard = now;
  node.open_before = is_new ? work.open_requests : node.open_requests;
  node.open_requests = work.open_requests;
  if (is_new || ended != node.ended) {
    node.ended = ended;
    node.ended_at = now;
  }
  if (ended >= kWarmUpSteps) AddSample(now, ended, stages, work, &node);
  if (now - judged_ >= interval_ * 0.9) Judge(now);
}

void SuspectWatch::AddSample(absl::Time now, uint64_t ended, const StageCounts& stages,
                             const WorkCounts& work, Node* node) {
  std::deque<Sample>& samples = node->samples;
  // Totals that fall are those of a node that counts anew.
  if (!samples.empty() &&
      (ended < samples.back().ended || !NeverFalls(samples.back().stages, stages) ||
       !NeverFalls(samples.back().work, work))) {
    samples.clear();
  }
  if (!samples.empty() && ended == samples.back().ended) return;
  samples.push_back({now, ended, stages, work});
  while (samples.size() > kMostSamples ||
         (samples.size() > kWindowBeats + 1 && ended - samples[1].ended >= kWindowSteps)) {
    samples.pop_front();
  }
}

std::optional<NodeWindow> SuspectWatch::WindowOf(const Node& node) {
  const std::deque<Sample>& samples = node.samples;
  if (samples.size() < kWindowBeats + 1) return std::nullopt;
  const Sample& first = samples.front();
  const Sample& last = samples.back();
  if (last.ended - first.ended < kWindowSteps) return std::nullopt;
  // The middle is where as many steps are before as behind.
  const uint64_t half = first.ended + (last.ended - first.ended) / 2;
  auto middle = std::find_if(samples.begin() + 1, samples.end() - 2,
                             [&](const Sample& sample) { return sample.ended >= half; });
  NodeWindow window = {node.who, RatesBetween(first, last), RatesBetween(first, *middle),
                       RatesBetween(*middle, last)};
  std::vector<double> steps;
  for (size_t i = 1; i < samples.size(); ++i) {
    steps.push_back(RatesBetween(samples[i - 1], samples[i]).step_seconds);
  }
  const double step = Median(std::move(steps));
  for (size_t i = 1; i < samples.size(); ++i) {
    const double gap = absl::ToDoubleSeconds(samples[i].when - samples[i - 1].when);
    const auto ended = static_cast<double>(samples[i].ended - samples[i - 1].ended);
    if (gap > (ended + kGapSteps) * step) window.is_even = false;
  }
  return window;
}

void SuspectWatch::ForgetGone() {
  std::set<std::string> gone;
  std::set<std::string> hosts;
  std::erase_if(nodes_, [&](const auto& entry) {
    const bool stays = takes_part_(entry.first);
    if (!stays) gone.insert(PlaceName(entry.second.who));
    if (stays) hosts.insert(absl::StrFormat("host %s", MachineOf(entry.second.who.host)));
    return !stays;
  });
  // Another node may have the rank by now.
  for (const auto& [id, node] : nodes_) gone.erase(PlaceName(node.who));
  const auto is_gone = [&](const SuspectId& id) {
    return gone.contains(id.first) ||
           (id.second == SuspectKind::kHost && !hosts.contains(id.first));
  };
  std::erase_if(usual_.seconds, [&](const auto& entry) { return is_gone(entry.first); });
  std::erase_if(usual_.bytes, [&](const auto& entry) { return is_gone(entry.first); });
  std::erase_if(hits_, [&](const auto& entry) { return is_gone(entry.first); });
  std::vector<SuspectId> over;
  for (const auto& [id, suspect] : suspects_) {
    if (is_gone(id)) over.push_back(id);
  }
  for (const SuspectId& id : over) Clear(id);
}

void SuspectWatch::WasHeldUp(absl::Duration pause) {
  for (auto& [id, node] : nodes_) {
    node.samples.clear();
    node.heard += pause;
    node.ended_at += pause;
  }
  hits_.clear();
}

std::vector<Finding> SuspectWatch::Stalled(absl::Time now) const {
  std::vector<Finding> all;
  std::vector<double> silences;
  for (const auto& [id, node] : nodes_) {
    silences.push_back(absl::ToDoubleSeconds(now - node.heard));
  }
  const double limit = absl::ToDoubleSeconds(std::max(kLeastSilence, interval_ * kSilentBeats));
  // Where nobody is heard it is the scheduler that hears nothing.
  const bool hears = silences.size() > 1 && Median(silences) < limit / 2;
  for (const auto& [id, node] : nodes_) {
    const double silence = absl::ToDoubleSeconds(now - node.heard);
    if (hears && silence >= limit) {
      all.push_back({node.who, SuspectKind::kStalled, silence, 0, 1, ""});
    }
  }
  if (!all.empty()) return all;
  // Where all are heard, and steps stand still, others wait for the worker that waits for nobody.
  std::vector<const Node*> idle;
  size_t workers = 0;
  size_t waiting = 0;
  absl::Time last_step = absl::InfinitePast();
  double step = 0;
  for (const auto& [id, node] : nodes_) {
    if (node.who.role != Role::kWorker) continue;
    ++workers;
    if (node.ended < kWarmUpSteps) return all;
    last_step = std::max(last_step, node.ended_at);
    if (node.samples.size() >= 2) {
      step = std::max(step, RatesBetween(node.samples.front(), node.samples.back()).step_seconds);
    }
    if (node.open_requests > 0 && node.open_before > 0) ++waiting;
    if (node.open_requests == 0 && node.open_before == 0) idle.push_back(&node);
  }
  const absl::Duration still = now - last_step;
  if (workers < 2 || still < kLeastStill || still < absl::Seconds(step) * kStillSteps ||
      idle.size() * 2 > workers || idle.size() + waiting != workers) {
    return all;
  }
  for (const Node* node : idle) {
    all.push_back({node->who, SuspectKind::kStalled, absl::ToDoubleSeconds(still), 0, 1,
                   std::string(kPushedNothing)});
  }
  return all;
}

void SuspectWatch::Judge(absl::Time now) {
  judged_ = now;
  ForgetGone();
  bool has_stalled = false;
  for (const Finding& finding : Stalled(now)) {
    Raise(now, finding);
    has_stalled = true;
  }
  std::vector<SuspectId> over;
  for (auto& [id, suspect] : suspects_) {
    if (id.second != SuspectKind::kStalled) continue;
    const absl::Time seen = suspect.since + absl::Seconds(suspect.finding.seconds);
    if (now - seen > kShownAfter) over.push_back(id);
  }
  for (const SuspectId& id : over) Clear(id);
  if (has_stalled) {
    // Everybody's steps are long because of it.
    for (auto& [id, node] : nodes_) node.samples.clear();
    hits_.clear();
    return;
  }
  std::vector<NodeWindow> windows;
  absl::Time begun = now;  // of the oldest window
  uint64_t step = 0;
  for (const auto& [id, node] : nodes_) {
    step = std::max(step, node.ended);
    if (auto window = WindowOf(node)) {
      windows.push_back(*std::move(window));
      begun = std::min(begun, node.samples.front().when);
    }
  }
  // Nothing is known for a while: that ends no verdict.
  if (windows.empty()) return;
  std::set<SuspectId> standing;
  for (const auto& [id, suspect] : suspects_) standing.insert(id);
  Assessment assessment = Assess(windows, usual_, standing);
  heat_ = std::move(assessment.heat);
  std::set<SuspectId> found;
  for (const Finding& finding : assessment.findings) {
    const SuspectId id = IdOf(finding.who, finding.kind);
    found.insert(id);
    Hits& hits = hits_.try_emplace(id, Hits{0, begun, step}).first->second;
    ++hits.count;
    const bool is_clear = finding.margin >= kClearMargin;
    if (suspects_.contains(id) ||
        hits.count >= (is_clear ? kHitsToBegin : static_cast<int>(kWindowBeats) + kHitsToBegin)) {
      if (is_clear || step - hits.step >= kWindowSteps) Raise(hits.since, finding);
    }
  }
  std::erase_if(hits_, [&](const auto& entry) { return !found.contains(entry.first); });
  over.clear();
  for (const auto& [id, suspect] : suspects_) {
    if (id.second == SuspectKind::kStalled) continue;
    int& misses = misses_[id];
    misses = found.contains(id) ? 0 : misses + 1;
    if (misses >= kMissesToEnd) over.push_back(id);
  }
  for (const SuspectId& id : over) Clear(id);
  Learn(std::move(assessment.now));
}

void SuspectWatch::Learn(std::map<SuspectId, Assessment::Now> now) {
  latest_.push_back(std::move(now));
  if (latest_.size() <= kDelay + kApart) return;
  const auto before = std::move(latest_.front());
  latest_.pop_front();
  const auto& after = latest_[kApart - 1];
  // A node that begins to stand out must not make that usual before it is noticed: so what is
  // learnt is some judgements old, and nothing of a kind of which there is a finding. But before
  // anything is known all are findings.
  std::set<SuspectKind> found;
  for (const auto& [id, hits] : hits_) {
    if (usual_.spread.contains(id.second)) found.insert(id.second);
  }
  for (const auto& [id, suspect] : suspects_) found.insert(id.second);
  std::map<SuspectKind, std::vector<double>> squares;
  for (const auto& [id, earlier] : before) {
    if (found.contains(id.second)) continue;
    const auto [usual, is_first] = usual_.seconds.try_emplace(id, earlier.seconds);
    usual_.bytes[id] = earlier.bytes;
    // Near the best, but no single lucky window.
    if (!is_first) {
      usual->second +=
          (earlier.seconds - usual->second) / (earlier.seconds < usual->second ? 4 : 64);
    }
    const auto later = after.find(id);
    if (later == after.end()) continue;
    squares[id.second].push_back(std::pow(later->second.excess - earlier.excess, 2) / 2);
  }
  for (const auto& [kind, all] : squares) {
    const double mean =
        std::accumulate(all.begin(), all.end(), 0.0) / static_cast<double>(all.size());
    int& times = learnt_[kind];
    times = std::min(times + 1, kMemory);
    double& spread = usual_.spread[kind];
    spread = std::sqrt(spread * spread + (mean - spread * spread) / times);
  }
}

void SuspectWatch::Raise(absl::Time since, const Finding& finding) {
  const SuspectId id = IdOf(finding.who, finding.kind);
  if (finding.kind == SuspectKind::kStalled) since -= absl::Seconds(finding.seconds);
  const auto [suspect, is_new] = suspects_.try_emplace(id, Suspect{finding, since});
  if (is_new) {
    changes_.push_back({true, suspect->second});
  } else {
    suspect->second.finding = finding;
    // It may have stalled once more.
    if (finding.kind == SuspectKind::kStalled) suspect->second.since = since;
  }
}

void SuspectWatch::Clear(const SuspectId& id) {
  auto suspect = suspects_.extract(id);
  if (suspect.empty()) return;
  misses_.erase(id);
  changes_.push_back({false, std::move(suspect.mapped())});
}

std::string SentenceOf(const Suspect& suspect, absl::Time now) {
  const Finding& finding = suspect.finding;
  const double since = absl::ToDoubleSeconds(now - suspect.since);
  const std::string place =
      finding.who.node == 0 ? PlaceName(finding.who)
                            : absl::StrFormat("%s on %s", PlaceName(finding.who), finding.who.host);
  const std::string amount =
      absl::StrFormat("%.1f ms a step (%.0f %% of it)", finding.seconds * 1e3, finding.share * 100);
  switch (finding.kind) {
    case SuspectKind::kCompute:
      return absl::StrFormat(
          "%s computes longer than the others, by %s, since %.0f s ago: look at the clock rate "
          "and temperature of its processors, and at the size of its batches",
          place, amount, since);
    case SuspectKind::kInput:
      return absl::StrFormat(
          "%s is longer between two steps than the others, by %s, since %.0f s ago: look at its "
          "data loader, its disk, and what only this rank does there",
          place, amount, since);
    case SuspectKind::kCollection:
      return absl::StrFormat(
          "%s collects garbage longer than the others, by %s, since %.0f s ago: call gc.freeze() "
          "after the first steps, and gc.collect() at the same step in all ranks or never",
          place, amount, since);
    case SuspectKind::kHost:
      return absl::StrFormat(
          "%s is busy: threads that train wait %s for a processor, since %.0f s ago (%s): end or "
          "move what else runs there, or give the job's processes there fewer threads",
          place, amount, since, finding.detail);
    case SuspectKind::kLink:
      return absl::StrFormat(
          "frames to and from %s take longer than others, by %s, since %.0f s ago: look at its "
          "network, e.g. with `bandoneon doctor`",
          place, amount, since);
    case SuspectKind::kServer:
      return absl::StrFormat(
          "%s works on its keys longer than usual, by %s, since %.0f s ago: look at what else "
          "runs on its host, and at the clock rate of its processors",
          place, amount, since);
    case SuspectKind::kStalled:
      if (finding.detail == kPushedNothing) {
        return absl::StrFormat(
            "%s has pushed nothing, and others wait for it, for %.1f s, since %.0f s ago: look at "
            "what its program does, with `bandoneon trace hang`",
            place, finding.seconds, since);
      }
      return absl::StrFormat(
          "%s was not heard for %.1f s, since %.0f s ago: look whether its process is stopped, its "
          "host overloaded or its network cut",
          place, finding.seconds, since);
  }
  return place;
}

}  // namespace bdn
