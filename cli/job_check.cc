#include "cli/job_check.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/check_report.h"

namespace bdn::cli {
namespace {

// A figure that is worse than usual by so many times is told of; of links, an error from the second
// number on. Of a busy machine only that is told which other programs do not explain: a rate that
// is the same each time that it is measured, by exchanges that take longer than threads wait for a
// core; and memory that is worse by so many times more.
constexpr double kSlow = 1.5;
constexpr double kVerySlow = 4;
constexpr double kBusyMargin = 2.5;
constexpr double kSteady = 1.4;
constexpr double kLongExchange = 0.05;  // seconds
// More pairs than these are told as one verdict.
constexpr size_t kMostPairsTold = 3;
constexpr double kMostPairsShare = 0.05;
// Loopback and round trips vary more from measurement to measurement than rates do.
constexpr double kSlowLoopback = 2;
constexpr double kSlowRoundTrip = 3;
// Less than this a round trip is not worth a word.
constexpr double kLeastExcessSeconds = 200e-6;
// A thread that gets less of a core than this, or more runnable threads a core than that, make a
// machine busy.
constexpr double kLeastShare = 0.75;
constexpr double kMostLoad = 1.5;
// All at once exchange less than this part of what the links carry one by one.
constexpr double kLeastTogether = 0.5;

// Returns the best value, or of many the one that a quarter of them exceeds, so that one
// measurement that is too good does not make the others look bad.
double CapOf(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  if (values.size() <= 3) return values.empty() ? 0 : values.back();
  return values[(values.size() - 1) * 3 / 4];
}

// Returns what is usual among some nodes: of two, the better one's.
double UsualOf(const std::vector<double>& values) {
  return values.size() < 3 ? CapOf(values) : MedianOf(values);
}

// A node or a pair that is slower than usual.
struct Slow {
  int worker = -1;
  int server = -1;
  double value = 0;
  double usual = 0;
  double spread = 1;   // of its rates, from measurement to measurement
  double seconds = 0;  // that an exchange took by which its rate was measured

  double factor() const { return usual / value; }
};

// The judge of a job's figures.
class Judge {
 public:
  explicit Judge(const JobFigures& figures) : figures_(figures) {}

  std::vector<Verdict> Verdicts() && {
    JudgeMachines();
    for (const bool is_local : {false, true}) JudgeLinks(is_local);
    JudgeTogether();
    NoteMissing();
    return std::move(verdicts_);
  }

 private:
  const std::string& HostOf(int machine) const {
    return figures_.places.hosts[static_cast<size_t>(machine)];
  }
  int MachineOfWorker(int worker) const {
    return figures_.places.workers[static_cast<size_t>(worker)];
  }
  int MachineOfServer(int server) const {
    return figures_.places.servers[static_cast<size_t>(server)];
  }
  std::string NameOfWorker(int worker) const {
    return absl::StrFormat("worker %d on %s", worker, HostOf(MachineOfWorker(worker)));
  }
  std::string NameOfServer(int server) const {
    return absl::StrFormat("server %d on %s", server, HostOf(MachineOfServer(server)));
  }
  bool IsBusy(int machine) const { return busy_[static_cast<size_t>(machine)]; }
  // A server's machine that is busy is known where a worker is on it, too.
  bool IsBusy(const Slow& slow) const {
    return (slow.worker >= 0 && IsBusy(MachineOfWorker(slow.worker))) ||
           (slow.server >= 0 && IsBusy(MachineOfServer(slow.server)));
  }

  void Add(Verdict verdict) { verdicts_.push_back(std::move(verdict)); }
  void JudgeMachines();
  void JudgeMachineFigure(const char* kind, double MachineFigures::*figure, double slow,
                          const std::function<std::string(double)>& text, const char* what,
                          const char* remedy);
  // A pair as one of its ends sees it.
  struct EndPair {
    int other = 0;
    double rate = 0;
    double seconds = 0;  // of an exchange
    double spread = 1;
  };
  // A worker or a server with its pairs.
  struct End {
    std::vector<EndPair> pairs;
    double cap = 0;      // what it can do
    double seconds = 0;  // this and the next are the medians of its pairs
    double spread = 1;
    bool is_slow = false;
  };
  using Ends = std::map<int, End>;  // by rank
  // A figure of pairs, of which more is better, and the time that an exchange took for it.
  struct Figure {
    double rate = 0;
    double seconds = 0;
  };
  using FigureOf = std::function<Figure(const LinkFigures&)>;
  bool IsLocal(const NodePair& pair) const {
    return MachineOfWorker(pair.worker) == MachineOfServer(pair.server);
  }
  void CollectEnds(bool is_local, const FigureOf& figure_of, Ends* workers, Ends* servers) const;
  // Returns those that are worse than usual by `slow` times. Of busy machines only those that the
  // link explains and that stand out.
  std::vector<Slow> SlowAmong(const std::vector<Slow>& all, double slow) const;
  std::vector<Slow> FindSlowEnds(Ends* ends, const Ends& others, int Slow::*node,
                                 double slow) const;
  std::vector<Slow> FindSlow(bool is_local, const FigureOf& figure_of, double slow) const;
  void JudgeLinks(bool is_local);
  std::string SeenOfLink(const Slow& slow, const std::string& direction) const;
  std::string RemedyOfLink(const Slow& slow, bool is_local) const;
  void AddSlowLink(const Slow& slow, const std::string& direction, bool is_local);
  void AddSlowRoundTrip(const Slow& slow);
  void JudgeTogether();
  void NoteMissing();

  const JobFigures& figures_;
  std::vector<bool> busy_;  // by machine
  std::vector<Verdict> verdicts_;
};

void Judge::JudgeMachines() {
  busy_.resize(figures_.machines.size());
  for (size_t i = 0; i < figures_.machines.size(); ++i) {
    const MachineFigures& machine = figures_.machines[i];
    if (machine.share <= 0 || machine.processors <= 0) continue;
    busy_[i] = machine.share < kLeastShare || machine.load > kMostLoad * machine.processors;
    if (!busy_[i]) continue;
    Add({.finding = {.severity = Severity::kWarning,
                     .subject = "busy",
                     .seen = absl::StrFormat(
                         "%s is busy: its load was %.1f on %.0f cores before the check, and a "
                         "thread of the check got %.0f %% of a core",
                         figures_.places.hosts[i], machine.load, machine.processors,
                         100 * machine.share),
                     .remedy = "end or move the other programs there; figures of this machine that "
                               "vary are compared with a wide margin"},
         .kind = "busy",
         .machine = static_cast<int>(i),
         .factor = machine.load / machine.processors,
         .is_final = machine.share >= kLeastShare});
  }
  const auto bytes = [](double value) { return absl::StrFormat("%.2f GB/s", value / 1e9); };
  JudgeMachineFigure("memory", &MachineFigures::memory, kSlow, bytes, "copies memory at",
                     "look at its memory: a channel without a module, a lower clock rate, NUMA "
                     "settings of the firmware, a virtual machine with busy neighbours");
  JudgeMachineFigure("codec", &MachineFigures::codec, kSlow, bytes, "encodes and decodes at",
                     "look at its processors: clock rate, power limit and temperature, the "
                     "governor, instruction sets (bandoneon doctor there)");
  JudgeMachineFigure("loopback", &MachineFigures::loopback, kSlowLoopback, RateText,
                     "exchanges with itself over TCP at",
                     "look at its kernel: packet filters, mitigations, a container's network");
}

void Judge::JudgeMachineFigure(const char* kind, double MachineFigures::*figure, double slow,
                               const std::function<std::string(double)>& text, const char* what,
                               const char* remedy) {
  std::vector<double> values;
  for (const MachineFigures& machine : figures_.machines) {
    if (machine.*figure > 0) values.push_back(machine.*figure);
  }
  if (values.size() < 2) return;
  const double usual = UsualOf(values);
  for (size_t i = 0; i < figures_.machines.size(); ++i) {
    const double value = figures_.machines[i].*figure;
    if (value <= 0 || usual / value < (busy_[i] ? slow * kBusyMargin : slow)) continue;
    Add({.finding = {.severity = Severity::kWarning,
                     .subject = kind,
                     .seen = absl::StrFormat(
                         "%s %s %s; %s is %s, %.1f times as much", figures_.places.hosts[i], what,
                         text(value),
                         values.size() < 3 ? "the other machine's" : "the machines' median",
                         text(usual), usual / value),
                     .remedy = remedy},
         .kind = kind,
         .machine = static_cast<int>(i),
         .factor = usual / value});
  }
}

void Judge::CollectEnds(bool is_local, const FigureOf& figure_of, Ends* workers,
                        Ends* servers) const {
  for (const NodePair& pair : AllPairs(figures_.places)) {
    const LinkFigures& link = figures_.at(pair);
    const Figure figure = figure_of(link);
    if (IsLocal(pair) != is_local || figure.rate <= 0) continue;
    (*workers)[pair.worker].pairs.push_back(
        {pair.server, figure.rate, figure.seconds, link.spread});
    (*servers)[pair.server].pairs.push_back(
        {pair.worker, figure.rate, figure.seconds, link.spread});
  }
  for (Ends* ends : {workers, servers}) {
    for (auto& [rank, end] : *ends) {
      std::vector<double> rates;
      std::vector<double> seconds;
      std::vector<double> spreads;
      for (const EndPair& pair : end.pairs) {
        rates.push_back(pair.rate);
        seconds.push_back(pair.seconds);
        spreads.push_back(pair.spread);
      }
      end.cap = CapOf(std::move(rates));
      end.seconds = MedianOf(std::move(seconds));
      end.spread = MedianOf(std::move(spreads));
    }
  }
}

std::vector<Slow> Judge::SlowAmong(const std::vector<Slow>& all, double slow) const {
  // The factor that nine in ten do not exceed is what figures vary by.
  std::vector<double> factors;
  for (const Slow& one : all) factors.push_back(one.factor());
  std::sort(factors.begin(), factors.end());
  const double scatter =
      factors.empty() ? 1 : std::max(1.0, factors[(factors.size() - 1) * 9 / 10]);
  std::vector<Slow> found;
  for (const Slow& one : all) {
    const bool is_of_link = one.spread <= kSteady && one.seconds >= kLongExchange;
    const bool is_told = !IsBusy(one) || (is_of_link && one.factor() >= slow * scatter);
    if (one.factor() >= slow && is_told) found.push_back(one);
  }
  return found;
}

std::vector<Slow> Judge::FindSlowEnds(Ends* ends, const Ends& others, int Slow::*node,
                                      double slow) const {
  std::vector<double> caps;
  for (const auto& [rank, end] : *ends) caps.push_back(end.cap);
  if (caps.size() < 2) return {};
  std::vector<Slow> all;
  for (const auto& [rank, end] : *ends) {
    Slow& one = all.emplace_back();
    one = {.value = end.cap, .usual = UsualOf(caps), .spread = end.spread, .seconds = end.seconds};
    one.*node = rank;
  }
  std::vector<Slow> found;
  for (const Slow& one : SlowAmong(all, slow)) {
    End& end = ends->at(one.*node);
    end.is_slow = std::any_of(end.pairs.begin(), end.pairs.end(), [&](const EndPair& pair) {
      return others.at(pair.other).cap / pair.rate >= slow;
    });
    if (end.is_slow) found.push_back(one);
  }
  return found;
}

// Takes the rate of a pair for the lesser of what its two ends can do, and what an end can do for
// the best of its pairs. So a slow end shows in its own best pair, unless the other ends of all its
// pairs do no better with others; and a slow pair in that both of its ends do better with others.
std::vector<Slow> Judge::FindSlow(bool is_local, const FigureOf& figure_of, double slow) const {
  Ends workers;
  Ends servers;
  CollectEnds(is_local, figure_of, &workers, &servers);
  std::vector<Slow> found = FindSlowEnds(&workers, servers, &Slow::worker, slow);
  for (const Slow& one : FindSlowEnds(&servers, workers, &Slow::server, slow)) {
    found.push_back(one);
  }
  // Returns what an end can do: one with a single pair is known by no other pair.
  const auto known = [](const Ends& ends, int rank) {
    const End& end = ends.at(rank);
    if (end.is_slow || end.pairs.size() > 1) return end.cap;
    std::vector<double> caps;
    for (const auto& [other, its] : ends) caps.push_back(its.cap);
    return UsualOf(caps);
  };
  std::vector<Slow> pairs;
  for (const auto& [rank, worker] : workers) {
    const double own = known(workers, rank);
    for (const EndPair& pair : worker.pairs) {
      pairs.push_back({.worker = rank,
                       .server = pair.other,
                       .value = pair.rate,
                       .usual = std::min(own, known(servers, pair.other)),
                       .spread = pair.spread,
                       .seconds = pair.seconds});
    }
  }
  for (const Slow& one : SlowAmong(pairs, slow)) found.push_back(one);
  return found;
}

void Judge::JudgeLinks(bool is_local) {
  const auto node = [](const Slow& slow) { return std::pair(slow.worker, slow.server); };
  std::map<std::pair<int, int>, Slow> down;
  for (const Slow& slow : FindSlow(
           is_local,
           [](const LinkFigures& link) {
             return Figure{link.down, link.down_seconds};
           },
           kSlow)) {
    down[node(slow)] = slow;
  }
  for (const Slow& up : FindSlow(
           is_local,
           [](const LinkFigures& link) {
             return Figure{link.up, link.up_seconds};
           },
           kSlow)) {
    const auto found = down.find(node(up));
    if (found == down.end()) {
      AddSlowLink(up, "up", is_local);
      continue;
    }
    AddSlowLink(up.factor() >= found->second.factor() ? up : found->second, "both ways", is_local);
    down.erase(found);
  }
  for (const auto& [who, slow] : down) AddSlowLink(slow, "down", is_local);
  const auto speed = [](const LinkFigures& link) {
    return Figure{link.round_trip > 0 ? 1 / link.round_trip : 0, link.round_trip};
  };
  for (const Slow& slow : FindSlow(is_local, speed, kSlowRoundTrip)) {
    if (1 / slow.value - 1 / slow.usual >= kLeastExcessSeconds) AddSlowRoundTrip(slow);
  }
}

std::string Judge::SeenOfLink(const Slow& slow, const std::string& direction) const {
  // Up is towards servers.
  const auto arrow = [&](bool is_towards) {
    if (direction == "both ways") return "to and from";
    return (direction == "up") == is_towards ? "to" : "from";
  };
  const std::string rate = RateText(slow.value);
  const std::string usual =
      absl::StrFormat("%s, %.1f times as much", RateText(slow.usual), slow.factor());
  if (slow.worker >= 0 && slow.server >= 0) {
    return absl::StrFormat("%s carries %s %s %s; usual for the two is %s",
                           NameOfWorker(slow.worker), rate, arrow(true), NameOfServer(slow.server),
                           usual);
  }
  const bool is_worker = slow.worker >= 0;
  const char* const kind = is_worker ? "worker" : "server";
  const size_t all = is_worker ? figures_.places.workers.size() : figures_.places.servers.size();
  return absl::StrFormat(
      "%s carries %s at most %s the %s; %s is %s",
      is_worker ? NameOfWorker(slow.worker) : NameOfServer(slow.server), rate, arrow(is_worker),
      is_worker ? "servers" : "workers",
      all > 2 ? absl::StrFormat("the %ss' median", kind) : absl::StrFormat("the other %s's", kind),
      usual);
}

std::string Judge::RemedyOfLink(const Slow& slow, bool is_local) const {
  if (is_local) {
    return "no network is between them: look at settings that their processes do not share (link, "
           "transport), at the cores and NUMA nodes to which they are bound, and at /dev/shm "
           "(bandoneon doctor there)";
  }
  if (slow.worker >= 0 && slow.server >= 0) {
    return absl::StrFormat(
        "look at the way between %s and %s: its switches and routes; compare by bandoneon doctor "
        "--listen on one and --peer on the other",
        HostOf(MachineOfWorker(slow.worker)), HostOf(MachineOfServer(slow.server)));
  }
  return absl::StrFormat(
      "look at the link of %s: its negotiated speed (ethtool), errors (ip -s link), cable and "
      "port, a limit of its container or cloud",
      HostOf(slow.worker >= 0 ? MachineOfWorker(slow.worker) : MachineOfServer(slow.server)));
}

void Judge::AddSlowLink(const Slow& slow, const std::string& direction, bool is_local) {
  const bool is_error = slow.factor() >= kVerySlow;
  Add({.finding = {.severity = is_error ? Severity::kError : Severity::kWarning,
                   .subject = "link",
                   .seen = SeenOfLink(slow, direction),
                   .remedy = RemedyOfLink(slow, is_local)},
       .kind = "link",
       .direction = direction,
       .worker = slow.worker,
       .server = slow.server,
       .factor = slow.factor()});
}

void Judge::AddSlowRoundTrip(const Slow& slow) {
  const std::string who =
      slow.worker >= 0 && slow.server >= 0
          ? absl::StrCat(NameOfWorker(slow.worker), " with ", NameOfServer(slow.server))
      : slow.worker >= 0 ? NameOfWorker(slow.worker)
                         : NameOfServer(slow.server);
  Add({.finding = {.severity = Severity::kWarning,
                   .subject = "round trip",
                   .seen =
                       absl::StrFormat("a small exchange of %s takes %s; usual is %s", who,
                                       SecondsText(1 / slow.value), SecondsText(1 / slow.usual)),
                   .remedy = "look at the route (traceroute, ping), a VPN or proxy on it, another "
                             "zone or region, and power saving of processors and cards there"},
       .kind = "round trip",
       .worker = slow.worker,
       .server = slow.server,
       .factor = slow.factor()});
}

void Judge::JudgeTogether() {
  // On few machines the processors bound what goes at once, and not the network.
  std::vector<int> workers = figures_.places.workers;
  std::vector<int> servers = figures_.places.servers;
  for (std::vector<int>* machines : {&workers, &servers}) {
    std::sort(machines->begin(), machines->end());
    machines->erase(std::unique(machines->begin(), machines->end()), machines->end());
  }
  if (workers.size() < 2 || servers.size() < 2) return;
  for (const bool is_up : {true, false}) {
    const LinkSums sums = SumsOfLinks(figures_, is_up);
    const double together = is_up ? figures_.all_up : figures_.all_down;
    const double bound = std::min(sums.workers, sums.servers);
    if (together <= 0 || together >= kLeastTogether * bound) continue;
    Add({.finding = {.severity = Severity::kWarning,
                     .subject = "together",
                     .seen = absl::StrFormat(
                         "all at once the workers %s %s; their links alone would carry %s",
                         is_up ? "send" : "receive", RateText(together), RateText(bound)),
                     .remedy = "something that the pairs share carries less than their links: a "
                               "switch's uplink, or the processors of the servers; more servers, "
                               "or a codec, help with both"},
         .kind = "together",
         .direction = is_up ? "up" : "down",
         .factor = bound / together});
  }
}

void Judge::NoteMissing() {
  const auto note = [this](std::string seen) {
    Add({.finding = {.severity = Severity::kNote, .subject = "pairs", .seen = std::move(seen)},
         .kind = "pairs"});
  };
  if (figures_.links.size() < 2) {
    note("one worker and one server: there is no other pair to compare the figures with");
  }
  const auto missing =
      std::count_if(figures_.links.begin(), figures_.links.end(),
                    [](const LinkFigures& link) { return link.up <= 0 || link.down <= 0; });
  if (missing > 0) {
    note(absl::StrFormat("%d of %d pairs were not measured, so that the check ends in time",
                         missing, figures_.links.size()));
  }
}

}  // namespace

std::vector<NodePair> AllPairs(const JobPlaces& places) {
  std::vector<NodePair> pairs;
  const int workers = static_cast<int>(places.workers.size());
  const int servers = static_cast<int>(places.servers.size());
  const int size = std::max(workers, servers);
  for (int shift = 0; shift < size; ++shift) {
    for (int worker = 0; worker < workers; ++worker) {
      const int server = (worker + shift) % size;
      if (server < servers) pairs.push_back({worker, server});
    }
  }
  return pairs;
}

std::vector<PairRound> PairRounds(const JobPlaces& places, std::span<const NodePair> pairs,
                                  size_t most) {
  std::vector<PairRound> rounds;
  std::vector<NodePair> left(pairs.begin(), pairs.end());
  while (!left.empty() && rounds.size() < most) {
    std::vector<bool> is_taken(places.hosts.size());
    std::vector<NodePair> later;
    PairRound& round = rounds.emplace_back();
    for (const NodePair& pair : left) {
      const auto worker = static_cast<size_t>(places.workers[static_cast<size_t>(pair.worker)]);
      const auto server = static_cast<size_t>(places.servers[static_cast<size_t>(pair.server)]);
      if (is_taken[worker] || is_taken[server]) {
        later.push_back(pair);
      } else {
        is_taken[worker] = is_taken[server] = true;
        round.push_back(pair);
      }
    }
    left = std::move(later);
  }
  return rounds;
}

void LinkFigures::Improve(const LinkFigures& other) {
  for (const auto& [known, more] : {std::pair(up, other.up), std::pair(down, other.down)}) {
    if (known > 0 && more > 0) spread = std::max({spread, known / more, more / known});
  }
  if (other.up > up) up_seconds = other.up_seconds;
  if (other.down > down) down_seconds = other.down_seconds;
  up = std::max(up, other.up);
  down = std::max(down, other.down);
  if (other.round_trip > 0 && (round_trip <= 0 || other.round_trip < round_trip)) {
    round_trip = other.round_trip;
  }
}

void MachineFigures::Improve(const MachineFigures& other) {
  memory = std::max(memory, other.memory);
  codec = std::max(codec, other.codec);
  loopback = std::max(loopback, other.loopback);
  share = std::max(share, other.share);
}

std::vector<Verdict> JudgeJob(const JobFigures& figures) { return Judge(figures).Verdicts(); }

std::vector<Verdict> SumUpPairs(const JobFigures& figures, std::vector<Verdict> verdicts) {
  const size_t most =
      std::max(kMostPairsTold, figures.links.size() / static_cast<size_t>(1 / kMostPairsShare));
  for (const char* const kind : {"link", "round trip"}) {
    const auto is_of_pair = [&](const Verdict& each) {
      return each.kind == kind && each.worker >= 0 && each.server >= 0;
    };
    const auto count =
        static_cast<size_t>(std::count_if(verdicts.begin(), verdicts.end(), is_of_pair));
    if (count <= most) continue;
    Verdict worst;
    Severity severity = Severity::kWarning;
    for (const Verdict& each : verdicts) {
      if (!is_of_pair(each)) continue;
      severity = std::max(severity, each.finding.severity);
      if (each.factor > worst.factor) worst = each;
    }
    std::erase_if(verdicts, is_of_pair);
    verdicts.push_back(
        {.finding = {.severity = severity,
                     .subject = kind,
                     .seen = absl::StrFormat("%d of %d pairs are slow, and their ends are not with "
                                             "others; the worst: %s",
                                             count, figures.links.size(), worst.finding.seen),
                     .remedy = "see what these pairs share (--json has all): a switch or a route; "
                               "where they have nothing in common, figures vary that much: try "
                               "again with more --seconds and nothing else running"},
         .kind = "pairs",
         .factor = worst.factor});
  }
  return verdicts;
}

Suspects SuspectsOf(const JobPlaces& places, std::span<const Verdict> verdicts) {
  Suspects suspects;
  std::vector<bool> machines(places.hosts.size());
  const auto is_meant = [&](const NodePair& pair) {
    return std::any_of(verdicts.begin(), verdicts.end(), [&](const Verdict& verdict) {
      if (verdict.worker < 0 && verdict.server < 0) return false;
      return (verdict.worker < 0 || verdict.worker == pair.worker) &&
             (verdict.server < 0 || verdict.server == pair.server);
    });
  };
  for (const NodePair& pair : AllPairs(places)) {
    if (is_meant(pair)) suspects.pairs.push_back(pair);
  }
  for (const Verdict& verdict : verdicts) {
    if (verdict.machine >= 0 && !verdict.is_final)
      machines[static_cast<size_t>(verdict.machine)] = true;
  }
  for (size_t i = 0; i < machines.size(); ++i) {
    if (machines[i]) suspects.machines.push_back(static_cast<int>(i));
  }
  return suspects;
}

double MedianOf(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

LinkSums SumsOfLinks(const JobFigures& figures, bool is_up) {
  // Nodes of one machine share its link, which the best of their pairs shows.
  std::map<int, double> workers;
  std::map<int, double> servers;
  for (const NodePair& pair : AllPairs(figures.places)) {
    const LinkFigures& link = figures.at(pair);
    const double rate = is_up ? link.up : link.down;
    double& worker = workers[figures.places.workers[static_cast<size_t>(pair.worker)]];
    double& server = servers[figures.places.servers[static_cast<size_t>(pair.server)]];
    worker = std::max(worker, rate);
    server = std::max(server, rate);
  }
  LinkSums sums;
  for (const auto& [machine, rate] : workers) sums.workers += rate;
  for (const auto& [machine, rate] : servers) sums.servers += rate;
  return sums;
}

int CheckExitCode(std::span<const Verdict> verdicts) {
  return std::any_of(verdicts.begin(), verdicts.end(), [](const Verdict& verdict) {
    return verdict.finding.severity == Severity::kError;
  });
}

}  // namespace bdn::cli
