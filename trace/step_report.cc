#include "trace/step_report.h"

#include <algorithm>
#include <set>
#include <string_view>
#include <utility>

#include "absl/strings/str_format.h"
#include "trace/program_time.h"

namespace bdn {
namespace {

// What a step of a program does in no mark.
constexpr char kUnmarked[] = "other";
constexpr auto kWaitingKind = static_cast<uint8_t>(TraceKind::kWaiting);

int64_t Median(std::vector<int64_t> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

double Ms(int64_t ns) { return static_cast<double>(ns) * 1e-6; }

bool IsServerPart(ExchangePart part) {
  switch (part) {
    case ExchangePart::kServerQueue:
    case ExchangePart::kSum:
    case ExchangePart::kHold:
    case ExchangePart::kRule:
    case ExchangePart::kServerEncode:
    case ExchangePart::kReply:
      return true;
    default:
      return false;
  }
}

// Finds exchanges of workers by when they were done, and by their key and step.
class ExchangeIndex {
 public:
  explicit ExchangeIndex(const JobTrace& job) : job_(job) {
    ends_.resize(job.nodes.size());
    for (uint32_t node = 0; node < job.nodes.size(); ++node) {
      for (const uint32_t index : job.nodes[node].exchanges) {
        const int64_t end = job.exchanges[index].End();
        if (end != kNoTime) ends_[node].push_back(end);
      }
    }
  }

  // Returns the exchange of a worker that was the last one done in (from, to]; null without one.
  const Exchange* LastDone(uint32_t worker, int64_t from, int64_t to) const {
    const auto& ends = ends_[worker];
    const auto after = std::upper_bound(ends.begin(), ends.end(), to);
    if (after == ends.begin() || *std::prev(after) <= from) return nullptr;
    const auto place = static_cast<size_t>(std::prev(after) - ends.begin());
    return &job_.exchanges[job_.nodes[worker].exchanges[place]];
  }
  const Exchange* Find(uint64_t key, uint64_t step, uint32_t worker) const {
    const auto found = job_.FindExchange(key, step, worker);
    return found ? &job_.exchanges[*found] : nullptr;
  }

 private:
  const JobTrace& job_;
  std::vector<std::vector<int64_t>> ends_;  // by node, as JobNode::exchanges
};

// A program that trains: the node that has its marks, and the one that has its exchanges, which is
// another one where it takes part through a daemon.
struct Program {
  uint32_t node;
  uint32_t worker;
  ProgramTime time;
};

// Returns the worker through which a process takes part: its host's daemon. Where one machine has
// several, processes are theirs by ranks, as many each.
uint32_t DaemonOf(const JobTrace& job, uint32_t process) {
  std::vector<uint32_t> daemons;
  Rank processes = 1;
  const TraceFacts& facts = job.nodes[process].trace.facts;
  for (uint32_t i = 0; i < job.nodes.size(); ++i) {
    const TraceFacts& other = job.nodes[i].trace.facts;
    if (other.host != facts.host || other.boot_id != facts.boot_id) continue;
    if (other.role == "worker") daemons.push_back(i);
    if (other.role == "process") processes = std::max(processes, other.rank + 1);
  }
  if (daemons.empty()) return process;
  const size_t share = (static_cast<size_t>(processes) + daemons.size() - 1) / daemons.size();
  return daemons[std::min(static_cast<size_t>(facts.rank) / share, daemons.size() - 1)];
}

std::vector<Program> ProgramsOf(const JobTrace& job) {
  std::vector<Program> programs;
  for (uint32_t i = 0; i < job.nodes.size(); ++i) {
    const TraceFacts& facts = job.nodes[i].trace.facts;
    if (facts.role == "server") continue;
    Program program{i, facts.role == "process" ? DaemonOf(job, i) : i,
                    ProgramTime(job.nodes[i].trace.records)};
    if (!program.time.IsEmpty()) programs.push_back(std::move(program));
  }
  return programs;
}

// Walks back from the end of a step over what it waited for: from program to exchange, from a hold
// to the worker that came last, and on to its program.
class PathWalker {
 public:
  PathWalker(const JobTrace& job, const ExchangeIndex& index, const std::vector<Program>& programs)
      : job_(job), index_(index), programs_(programs) {}

  // Returns the path of [begin, end] that ends in a program.
  std::vector<PathPiece> FromProgram(size_t program, int64_t begin, int64_t end) {
    Start(begin, end);
    WalkProgram(program);
    return Finish();
  }
  // Returns the path that ends with an exchange, over exchanges alone.
  std::vector<PathPiece> FromExchange(const Exchange& exchange, int64_t begin) {
    Start(begin, exchange.End());
    const uint32_t pusher = WalkExchange(exchange);
    // What its program did before is not known.
    Back(pusher, kUnmarked, begin_);
    return Finish();
  }

 private:
  void Start(int64_t begin, int64_t end) {
    begin_ = begin;
    at_ = end;
    pieces_.clear();
  }

  // Adds what lies before the last piece, back to `ns`.
  void Back(uint32_t node, std::string_view kind, int64_t ns) {
    ns = std::max(ns, begin_);
    if (ns >= at_) return;
    if (!pieces_.empty() && pieces_.back().node == node && pieces_.back().kind == kind) {
      pieces_.back().begin_ns = ns;
    } else {
      pieces_.push_back({node, std::string(kind), ns, at_});
    }
    at_ = ns;
  }

  std::vector<PathPiece> Finish() {
    std::reverse(pieces_.begin(), pieces_.end());
    return std::move(pieces_);
  }

  std::optional<size_t> ProgramAt(uint32_t worker) const {
    for (size_t i = 0; i < programs_.size(); ++i) {
      if (programs_[i].worker == worker) return i;
    }
    return std::nullopt;
  }

  void WalkProgram(size_t program) {
    while (at_ > begin_) {
      const Program& here = programs_[program];
      const auto span = here.time.SpanBefore(at_);
      if (!span) return Back(here.node, kUnmarked, begin_);
      const ProgramSpan& now = here.time.spans()[*span];
      const Exchange* exchange = nullptr;
      if (now.kind == TraceKind::kWaiting) {
        exchange = index_.LastDone(here.worker, now.begin_ns, at_);
      }
      if (exchange == nullptr) {
        Back(
            here.node,
            now.kind ? TraceKindName(static_cast<uint8_t>(*now.kind)) : std::string_view(kUnmarked),
            now.begin_ns);
        continue;
      }
      const int64_t before = at_;
      Back(here.node, ExchangePartName(ExchangePart::kDeliver), exchange->End());
      const uint32_t pusher = WalkExchange(*exchange);
      // An exchange without a length leads nowhere.
      if (at_ == before) Back(here.node, TraceKindName(kWaitingKind), now.begin_ns);
      if (at_ <= begin_) return;
      // Before its push the worker that the path has come to did something else.
      const auto next = ProgramAt(pusher);
      if (!next) return Back(pusher, kUnmarked, begin_);
      program = *next;
    }
  }

  // Returns the worker whose push the path has come to, at its first point.
  uint32_t WalkExchange(const Exchange& exchange) {
    const Exchange* now = &exchange;
    std::vector<PartSpan> parts = PartsOf(*now);
    for (size_t i = parts.size(); i-- > 0 && at_ > begin_;) {
      const PartSpan& part = parts[i];
      if (part.begin_ns >= at_) continue;
      const Exchange* last = part.part == ExchangePart::kHold ? LastOf(*now) : nullptr;
      if (last != nullptr && last != now) {
        // Not the hold took the time, but what the last worker did until its push was taken.
        now = last;
        parts = PartsOf(*now);
        i = static_cast<size_t>(std::find_if(parts.begin(), parts.end(), IsBehindSum) -
                                parts.begin());
        if (i > 0) Back(ServerOf(*now), ExchangePartName(parts[i - 1].part), parts[i - 1].end_ns);
        continue;
      }
      Back(IsServerPart(part.part) ? ServerOf(*now) : now->worker, ExchangePartName(part.part),
           part.begin_ns);
    }
    return now->worker;
  }

  static bool IsBehindSum(const PartSpan& part) { return part.part >= ExchangePart::kHold; }
  const Exchange* LastOf(const Exchange& exchange) const {
    if (exchange.last_worker < 0) return nullptr;
    return index_.Find(exchange.key, exchange.step, static_cast<uint32_t>(exchange.last_worker));
  }
  static uint32_t ServerOf(const Exchange& exchange) {
    return exchange.server < 0 ? exchange.worker : static_cast<uint32_t>(exchange.server);
  }

  const JobTrace& job_;
  const ExchangeIndex& index_;
  const std::vector<Program>& programs_;
  int64_t begin_ = 0;
  int64_t at_ = 0;
  std::vector<PathPiece> pieces_;  // from the end on
};

// Adds what a program waited for in [from, to], from the last exchange back.
void AddExposed(const ExchangeIndex& index, uint32_t worker, int64_t from, int64_t to,
                ExposedTime* exposed) {
  while (to > from) {
    const Exchange* exchange = index.LastDone(worker, from, to);
    if (exchange == nullptr) {
      exposed->without_exchange_ns += to - from;
      return;
    }
    const auto add = [&](ExchangePart part, int64_t begin, int64_t end) {
      const int64_t ns = std::min(end, to) - std::max(begin, from);
      if (ns <= 0) return;
      exposed->by_part[static_cast<size_t>(part)] += ns;
      if (part == ExchangePart::kHold) exposed->hold_by_worker[exchange->last_worker] += ns;
    };
    add(ExchangePart::kDeliver, exchange->End(), to);
    for (const PartSpan& part : PartsOf(*exchange)) add(part.part, part.begin_ns, part.end_ns);
    // An exchange without a length would stop the walk.
    to = std::min(exchange->Begin(), to - 1);
  }
}

ExposedTime ExposedIn(const ExchangeIndex& index, const Program& program,
                      const ProgramTime::Step& step) {
  ExposedTime exposed;
  const std::vector<ProgramSpan>& spans = program.time.spans();
  auto span = std::partition_point(spans.begin(), spans.end(), [&](const ProgramSpan& one) {
    return one.end_ns <= step.begin_ns;
  });
  for (; span != spans.end() && span->begin_ns < step.end_ns; ++span) {
    if (span->kind != TraceKind::kWaiting) continue;
    AddExposed(index, program.worker, std::max(span->begin_ns, step.begin_ns),
               std::min(span->end_ns, step.end_ns), &exposed);
  }
  return exposed;
}

// Explains the steps of programs.
std::vector<StepReport> StepsOfPrograms(const JobTrace& job, const ExchangeIndex& index,
                                        const std::vector<Program>& programs) {
  struct Ends {
    int64_t begin_ns = 0;
    int64_t end_ns = 0;
    size_t last = 0;  // the program that ended it
  };
  std::map<uint64_t, Ends> ends;
  std::map<uint64_t, std::map<uint32_t, ExposedTime>> exposed;
  for (size_t i = 0; i < programs.size(); ++i) {
    for (const ProgramTime::Step& step : programs[i].time.steps()) {
      const auto [found, is_new] = ends.emplace(step.number, Ends{step.begin_ns, step.end_ns, i});
      Ends& all = found->second;
      all.begin_ns = std::min(all.begin_ns, step.begin_ns);
      if (step.end_ns > all.end_ns) {
        all.end_ns = step.end_ns;
        all.last = i;
      }
      exposed[step.number][programs[i].node] = ExposedIn(index, programs[i], step);
    }
  }
  PathWalker walker(job, index, programs);
  std::vector<StepReport> steps;
  for (const auto& [number, all] : ends) {
    const bool follows = !steps.empty() && steps.back().step + 1 == number;
    StepReport report{.step = number,
                      .begin_ns = follows ? steps.back().end_ns : all.begin_ns,
                      .end_ns = all.end_ns,
                      .exposed = std::move(exposed[number])};
    report.begin_ns = std::min(report.begin_ns, report.end_ns);
    report.path = walker.FromProgram(all.last, report.begin_ns, report.end_ns);
    steps.push_back(std::move(report));
  }
  return steps;
}

// Explains the steps of keys, where no program has marked its own.
std::vector<StepReport> StepsOfExchanges(const JobTrace& job, const ExchangeIndex& index) {
  struct Ends {
    int64_t begin_ns = 0;
    const Exchange* last = nullptr;
  };
  std::map<uint64_t, Ends> ends;
  for (const Exchange& exchange : job.exchanges) {
    if (exchange.End() == kNoTime) continue;
    const auto [found, is_new] = ends.emplace(exchange.step, Ends{exchange.Begin(), &exchange});
    Ends& all = found->second;
    all.begin_ns = std::min(all.begin_ns, exchange.Begin());
    if (exchange.End() > all.last->End()) all.last = &exchange;
  }
  PathWalker walker(job, index, {});
  std::vector<StepReport> steps;
  for (const auto& [number, all] : ends) {
    StepReport report{.step = number, .begin_ns = all.begin_ns, .end_ns = all.last->End()};
    report.path = walker.FromExchange(*all.last, report.begin_ns);
    steps.push_back(std::move(report));
  }
  return steps;
}

using Place = std::pair<uint32_t, std::string>;  // node and kind

std::map<Place, int64_t> ByPlace(const StepReport& step) {
  std::map<Place, int64_t> times;
  for (const PathPiece& piece : step.path) {
    times[{piece.node, piece.kind}] += piece.end_ns - piece.begin_ns;
  }
  return times;
}

// Returns what a kind is called in a sentence.
std::string Words(const std::string& kind) {
  static const std::map<std::string, std::string> kWords = {
      {"waiting", "waiting without an open exchange"},
      {"collection", "garbage collection"},
      {"optimizer", "the optimizer"},
      {"other", "what no mark covers"},
      {"queue", "pushes waiting to be encoded"},
      {"encode", "encoding"},
      {"send", "sending of pushes"},
      {"server_queue", "pushes waiting for their shard"},
      {"sum", "adding up"},
      {"hold", "waiting for the round's last push"},
      {"rule", "the update rule"},
      {"server_encode", "encoding of replies"},
      {"reply", "sending of replies"},
      {"answer", "waiting for answers"},
      {"decode_queue", "replies waiting to be decoded"},
      {"decode", "decoding"},
      {"deliver", "the program's waking up"}};
  const auto found = kWords.find(kind);
  return found == kWords.end() ? kind : found->second;
}

// Returns the node that had most of a kind's time.
uint32_t MostOf(const std::map<Place, int64_t>& times, const std::string& kind) {
  const auto of_kind = [&](const auto& entry) {
    return entry.first.second == kind ? entry.second : -1;
  };
  return std::max_element(times.begin(), times.end(),
                          [&](const auto& a, const auto& b) { return of_kind(a) < of_kind(b); })
      ->first.first;
}

// Says why steps took longer than the median, by the kind that was longer on their paths. Not by
// the node besides: in most steps the path goes over other nodes, and there is no usual time.
void GiveReasons(const JobTrace& job, const std::vector<Program>& programs, JobReport* report) {
  std::map<std::string, int64_t> medians;
  for (const auto& kind : report->kinds) medians[kind.kind] = kind.median_ns;
  // By how much longer than in its median step a program was ready to run and did not.
  std::map<std::pair<uint32_t, uint64_t>, int64_t> queued;
  for (const Program& program : programs) {
    std::vector<int64_t> all;
    for (const auto& step : program.time.steps()) all.push_back(step.queued_ns);
    const int64_t median = Median(std::move(all));
    for (const auto& step : program.time.steps()) {
      queued[{program.node, step.number}] = step.queued_ns - median;
    }
  }
  for (StepReport& step : report->steps) {
    const int64_t excess = step.Duration() - report->median_ns;
    if (excess * 10 <= report->median_ns) continue;  // such differences are everywhere
    const auto by_place = ByPlace(step);
    std::map<std::string, int64_t> longer;
    for (const auto& [place, ns] : by_place) longer[place.second] += ns;
    for (auto& [kind, ns] : longer) ns -= medians[kind];
    const auto worst =
        std::max_element(longer.begin(), longer.end(),
                         [](const auto& a, const auto& b) { return a.second < b.second; });
    if (worst == longer.end() || worst->second <= 0) continue;
    const uint32_t node = MostOf(by_place, worst->first);
    step.reason = absl::StrFormat(
        "step %d took %.1f ms, %.1f ms more than the median of %.1f ms: %s took %.1f ms of its "
        "critical path, most of it at %s, and takes %.1f ms in the median",
        step.step, Ms(step.Duration()), Ms(excess), Ms(report->median_ns), Words(worst->first),
        Ms(worst->second + medians[worst->first]), job.NodeName(node), Ms(medians[worst->first]));
    const auto found = queued.find({node, step.step});
    if (found != queued.end() && found->second * 3 > excess) {
      step.reason += absl::StrFormat(
          "; its program was ready to run and did not for %.1f ms more than in the median, so the "
          "machine was busy with something else",
          Ms(found->second));
    }
  }
}

std::vector<JobReport::KindTime> KindsOf(const std::vector<const StepReport*>& chosen) {
  std::map<std::string, std::vector<int64_t>> by_kind;
  std::map<std::string, std::map<uint32_t, double>> by_node;
  const auto steps = static_cast<double>(std::max<size_t>(chosen.size(), 1));
  for (const StepReport* const step : chosen) {
    std::map<std::string, int64_t> times;
    for (const PathPiece& piece : step->path) {
      const int64_t ns = piece.end_ns - piece.begin_ns;
      times[piece.kind] += ns;
      by_node[piece.kind][piece.node] += static_cast<double>(ns) / steps;
    }
    for (const auto& [kind, ns] : times) by_kind[kind].push_back(ns);
  }
  std::vector<JobReport::KindTime> kinds;
  for (auto& [kind, values] : by_kind) {
    JobReport::KindTime time{.kind = kind, .mean_by_node = by_node[kind]};
    for (const int64_t ns : values) time.mean_ns += static_cast<double>(ns) / steps;
    values.resize(chosen.size(), 0);
    time.median_ns = Median(values);
    kinds.push_back(std::move(time));
  }
  std::stable_sort(kinds.begin(), kinds.end(),
                   [](const auto& a, const auto& b) { return a.mean_ns > b.mean_ns; });
  return kinds;
}

}  // namespace

int64_t ExposedTime::Total() const {
  int64_t total = 0;
  for (const int64_t ns : by_part) total += ns;
  return total;
}

JobReport ExplainJob(const JobTrace& job) {
  const ExchangeIndex index(job);
  const std::vector<Program> programs = ProgramsOf(job);
  JobReport report{.has_marks = !programs.empty()};
  report.steps =
      report.has_marks ? StepsOfPrograms(job, index, programs) : StepsOfExchanges(job, index);
  std::vector<int64_t> durations;
  for (const StepReport& step : report.steps) durations.push_back(step.Duration());
  report.median_ns = Median(std::move(durations));
  std::vector<const StepReport*> all;
  for (const StepReport& step : report.steps) all.push_back(&step);
  report.kinds = KindsOf(all);
  report.links = LinksOf(job);
  GiveReasons(job, programs, &report);
  return report;
}

std::vector<JobReport::KindTime> KindsOfSteps(const JobReport& report,
                                              const std::set<uint64_t>& numbers) {
  std::vector<const StepReport*> chosen;
  for (const StepReport& step : report.steps) {
    if (numbers.contains(step.step)) chosen.push_back(&step);
  }
  return KindsOf(chosen);
}

}  // namespace bdn
