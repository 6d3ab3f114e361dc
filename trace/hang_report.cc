#include "trace/hang_report.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/telemetry/stage_times.h"
#include "trace/text_table.h"

namespace bdn {
namespace {

using Json = nlohmann::ordered_json;

// A node that lives reads its clock once a second; a busy machine may make it late.
constexpr double kSilentAfterSeconds = 3;
constexpr size_t kRoundsShown = 10;

// What is known of a step of a key.
struct KnownRound {
  std::set<NodeId> pushed;
  int64_t since_ns = std::numeric_limits<int64_t>::max();
  bool is_closed = false;
};

class HangFinder {
 public:
  explicit HangFinder(const JobTrace& job) : job_(job) {}

  HangReport Find() {
    newest_ns_ = 0;
    for (const JobNode& node : job_.nodes) newest_ns_ = std::max(newest_ns_, node.trace.LastSign());
    for (uint32_t i = 0; i < job_.nodes.size(); ++i) report_.nodes.push_back(StateOf(i));
    ReadRounds();
    FindOpenRounds();
    report_.sentence = Sentence();
    return std::move(report_);
  }

 private:
  double Age(int64_t ns) const { return static_cast<double>(newest_ns_ - ns) * 1e-9; }

  std::string What(const TraceRecord& record) const {
    std::string what(TraceKindName(record.kind));
    const bool has_key = record.kind < kFirstMark ||
                         record.kind == static_cast<uint8_t>(TraceKind::kReady) ||
                         record.kind == static_cast<uint8_t>(TraceKind::kUser);
    if (has_key) absl::StrAppend(&what, " of '", job_.NameOf(record.key), "'");
    if (record.step != 0) absl::StrAppend(&what, has_key ? " step " : " of step ", record.step);
    return what;
  }

  NodeState StateOf(uint32_t index) const {
    const NodeTrace& trace = job_.nodes[index].trace;
    NodeState state{.node = index, .has_ended = trace.ended_ns != 0};
    const TraceRecord* last = nullptr;
    const TraceRecord* mark = nullptr;
    for (const TraceRecord& record : trace.records) {
      if (record.kind > kLastMark) continue;
      const TraceRecord*& latest = record.kind < kFirstMark ? last : mark;
      if (latest == nullptr || EndOf(record) >= EndOf(*latest)) latest = &record;
    }
    if (last != nullptr) {
      state.last = What(*last);
      state.last_age_s = Age(EndOf(*last));
    }
    if (mark != nullptr) {
      state.last_mark = What(*mark);
      state.last_mark_age_s = Age(EndOf(*mark));
    }
    state.sign_age_s = Age(trace.LastSign());
    state.is_silent = !state.has_ended && state.sign_age_s > kSilentAfterSeconds;
    for (const uint32_t exchange : job_.nodes[index].exchanges) {
      if (IsOpen(job_.exchanges[exchange])) ++state.open_exchanges;
    }
    return state;
  }

  static bool IsOpen(const Exchange& exchange) {
    return exchange.At(ExchangePoint::kSending) != kNoTime &&
           exchange.At(ExchangePoint::kReplyHere) == kNoTime && exchange.End() == kNoTime;
  }

  // Of servers by their records, of workers whose servers have no recording by their exchanges.
  void ReadRounds() {
    for (const JobNode& node : job_.nodes) {
      if (node.trace.facts.role != "server") continue;
      for (const TraceRecord& record : node.trace.records) ReadServerRecord(record);
    }
    for (const Exchange& exchange : job_.exchanges) {
      if (exchange.At(ExchangePoint::kSending) == kNoTime) continue;
      KnownRound& round = rounds_[exchange.key][exchange.step];
      const NodeId worker = job_.nodes[exchange.worker].trace.facts.node;
      round.pushed.insert(worker);
      round.since_ns = std::min(round.since_ns, exchange.At(ExchangePoint::kSending));
      round.is_closed = round.is_closed || exchange.At(ExchangePoint::kReplyHere) != kNoTime;
    }
  }

  void ReadServerRecord(const TraceRecord& record) {
    const auto stage = FindStage(record.kind);
    if (!stage || record.step == 0) return;
    KnownRound& round = rounds_[record.key][record.step];
    const bool is_push = *stage == Stage::kQueue || *stage == Stage::kSum || *stage == Stage::kHold;
    if (is_push && record.peer != 0) {
      round.pushed.insert(record.peer);
      round.since_ns = std::min(round.since_ns, record.begin_ns);
    }
    round.is_closed = round.is_closed || *stage == Stage::kHold || *stage == Stage::kRule ||
                      *stage == Stage::kEncode || *stage == Stage::kReply;
  }

  // Returns the workers that a round of a key waits for: those of the last complete one.
  std::set<NodeId> Expected(const std::map<uint64_t, KnownRound>& rounds) const {
    for (auto round = rounds.rbegin(); round != rounds.rend(); ++round) {
      if (round->second.is_closed && !round->second.pushed.empty()) return round->second.pushed;
    }
    std::set<NodeId> all;
    for (const JobNode& node : job_.nodes) {
      for (const NodeId worker : node.trace.facts.workers) {
        if (worker != 0) all.insert(worker);
      }
    }
    return all;
  }

  void FindOpenRounds() {
    for (const auto& [key, rounds] : rounds_) {
      // A round before one that closed has closed, too: its end is overwritten.
      const auto& [step, last] = *rounds.rbegin();
      if (last.is_closed || last.pushed.empty()) continue;
      OpenRound open{.key = key, .step = step, .since_ns = last.since_ns};
      open.pushed.assign(last.pushed.begin(), last.pushed.end());
      for (const NodeId worker : Expected(rounds)) {
        if (!last.pushed.contains(worker)) open.missing.push_back(worker);
      }
      for (auto* const nodes : {&open.pushed, &open.missing}) SortByRank(nodes);
      report_.rounds.push_back(std::move(open));
    }
    std::stable_sort(report_.rounds.begin(), report_.rounds.end(),
                     [](const auto& a, const auto& b) { return a.since_ns < b.since_ns; });
  }

  // Nodes without a recording come last.
  void SortByRank(std::vector<NodeId>* nodes) const {
    const auto place_of = [this](NodeId node) {
      return std::pair(job_.IndexOf(node).value_or(UINT32_MAX), node);
    };
    std::sort(nodes->begin(), nodes->end(),
              [&](NodeId a, NodeId b) { return place_of(a) < place_of(b); });
  }

  std::string NameOf(NodeId id) const { return job_.NodeNameOf(id); }

  std::string Names(const std::vector<NodeId>& nodes) const {
    return absl::StrJoin(
        nodes, ", ", [this](std::string* out, NodeId node) { absl::StrAppend(out, NameOf(node)); });
  }

  std::string RoundName(const OpenRound& round) const {
    return absl::StrFormat("'%s' of step %d", job_.NameOf(round.key), round.step);
  }

  // Returns what a node did last, as the end of a sentence about it.
  std::string LastDeed(NodeId id) const {
    const auto index = job_.IndexOf(id);
    const auto absent = job_.absent.find(id);
    if (!index && absent != job_.absent.end()) {
      return absl::StrCat("there is no recording of it: ", absent->second.why);
    }
    if (!index) return "there is no recording of it";
    const NodeState& state = report_.nodes[*index];
    const TraceFacts& facts = job_.nodes[*index].trace.facts;
    std::string deed;
    if (!state.last_mark.empty() &&
        (state.last.empty() || state.last_mark_age_s < state.last_age_s)) {
      deed = absl::StrFormat("its program last ended %s %.1f s before the newest record",
                             state.last_mark, state.last_mark_age_s);
    } else if (!state.last.empty()) {
      deed = absl::StrFormat("last it ended %s %.1f s before the newest record", state.last,
                             state.last_age_s);
    } else {
      deed = "it has recorded nothing";
    }
    if (state.has_ended) return deed + ", and it closed its recording in order";
    if (state.is_silent) {
      return absl::StrFormat(
          "%s, and its process (pid %d on %s) was stopped or killed: not even "
          "its clock was read for %.1f s",
          deed, facts.pid, facts.host, state.sign_age_s);
    }
    return absl::StrFormat("%s; its process (pid %d on %s) runs", deed, facts.pid, facts.host);
  }

  // Returns the silent server that most open exchanges went to. Those of which no recording tells
  // the server went to one that gave none.
  std::optional<NodeId> SilentServer() const {
    std::map<NodeId, int> open;
    for (const Exchange& exchange : job_.exchanges) {
      if (IsOpen(exchange) && exchange.server_node != 0) ++open[exchange.server_node];
    }
    std::optional<NodeId> worst;
    int most = 0;
    for (const NodeState& state : report_.nodes) {
      const TraceFacts& facts = job_.nodes[state.node].trace.facts;
      if (facts.role != "server" || !state.is_silent || open[facts.node] <= most) continue;
      worst = facts.node;
      most = open[facts.node];
    }
    const bool is_lost = std::any_of(
        job_.exchanges.begin(), job_.exchanges.end(),
        [](const Exchange& exchange) { return IsOpen(exchange) && exchange.server_node == 0; });
    for (const auto& [node, absent] : job_.absent) {
      if (!absent.is_silent || !absent.name.starts_with("server")) continue;
      if (open[node] > most || (!worst && is_lost)) return node;
    }
    return worst;
  }

  // Returns the worker that most open rounds wait for, and the oldest of them.
  std::optional<std::pair<NodeId, const OpenRound*>> MissingWorker() const {
    std::map<NodeId, int> times;
    for (const OpenRound& round : report_.rounds) {
      for (const NodeId worker : round.missing) ++times[worker];
    }
    if (times.empty()) return std::nullopt;
    const NodeId worst =
        std::max_element(times.begin(), times.end(), [](const auto& a, const auto& b) {
          return a.second < b.second;
        })->first;
    for (const OpenRound& round : report_.rounds) {
      if (std::count(round.missing.begin(), round.missing.end(), worst) > 0) {
        return std::pair(worst, &round);
      }
    }
    return std::nullopt;
  }

  // Returns a round that `worker` has pushed and `other` has not.
  const OpenRound* PushedBy(NodeId worker, NodeId other) const {
    for (const OpenRound& round : report_.rounds) {
      const auto has = [](const std::vector<NodeId>& nodes, NodeId node) {
        return std::count(nodes.begin(), nodes.end(), node) > 0;
      };
      if (has(round.pushed, worker) && has(round.missing, other)) return &round;
    }
    return nullptr;
  }

  std::string MissingSentence(NodeId worker, const OpenRound& round) const {
    const size_t count = std::count_if(
        report_.rounds.begin(), report_.rounds.end(), [worker](const OpenRound& other) {
          return std::count(other.missing.begin(), other.missing.end(), worker) > 0;
        });
    for (const NodeId other : round.pushed) {
      if (const OpenRound* theirs = PushedBy(worker, other)) {
        return absl::StrFormat(
            "%s and %s wait for each other: %s has pushed %s and %s has not, and %s has pushed %s "
            "and %s has not",
            NameOf(other), NameOf(worker), NameOf(other), RoundName(round), NameOf(worker),
            NameOf(worker), RoundName(*theirs), NameOf(other));
      }
    }
    return absl::StrFormat(
        "%s has not pushed %s%s, for which %s %s; %s", NameOf(worker), RoundName(round),
        count > 1 ? absl::StrFormat(" (and %d more)", count - 1) : "", Names(round.pushed),
        round.pushed.size() == 1 ? "waits" : "wait", LastDeed(worker));
  }

  // Returns what is said where all workers have pushed, and yet some have no answer.
  std::string UnansweredSentence() const {
    const Exchange* unanswered = nullptr;
    for (const Exchange& exchange : job_.exchanges) {
      if (!IsOpen(exchange)) continue;
      // A push that never arrived is why the others of its round have no answer.
      const bool has_arrived = exchange.At(ExchangePoint::kArrived) != kNoTime;
      if (unanswered == nullptr || !has_arrived) unanswered = &exchange;
      if (!has_arrived) break;
    }
    if (unanswered == nullptr) return "";
    const NodeId server = unanswered->server_node;
    const bool has_arrived = unanswered->At(ExchangePoint::kArrived) != kNoTime;
    const std::string where =
        server == 0 ? "no recording shows at a server"
                    : absl::StrCat(NameOf(server), has_arrived ? " has got" : " has not recorded");
    return absl::StrFormat("%s has no answer to its push of '%s' of step %d, which %s; %s",
                           job_.NodeName(unanswered->worker), job_.NameOf(unanswered->key),
                           unanswered->step, where, LastDeed(server));
  }

  std::string Sentence() const {
    if (const auto server = SilentServer()) {
      return absl::StrFormat("%s does not answer; %s", NameOf(*server), LastDeed(*server));
    }
    if (const auto missing = MissingWorker())
      return MissingSentence(missing->first, *missing->second);
    std::string unanswered = UnansweredSentence();
    if (!unanswered.empty()) return unanswered;
    for (const NodeState& state : report_.nodes) {
      if (!state.is_silent) continue;
      return absl::StrFormat("no exchange is open, but %s is silent; %s", job_.NodeName(state.node),
                             LastDeed(job_.nodes[state.node].trace.facts.node));
    }
    return "no exchange is open where the recordings end: no node waits for another one";
  }

  const JobTrace& job_;
  int64_t newest_ns_ = 0;
  std::map<uint64_t, std::map<uint64_t, KnownRound>> rounds_;  // by key and step
  HangReport report_;
};

std::string StackText(const JobTrace& job, const NodeState& state) {
  const JobNode& node = job.nodes[state.node];
  if (!state.why_no_stack.empty()) {
    return absl::StrFormat("\nThere is no Python stack of %s (pid %d on %s): %s.\n",
                           job.NodeName(state.node), node.trace.facts.pid, node.trace.facts.host,
                           state.why_no_stack);
  }
  if (state.stack.empty()) return "";
  std::string text =
      absl::StrFormat("\nThe Python stack of %s (pid %d on %s):\n", job.NodeName(state.node),
                      node.trace.facts.pid, node.trace.facts.host);
  for (const absl::string_view line : absl::StrSplit(state.stack, '\n', absl::SkipEmpty())) {
    absl::StrAppend(&text, "  ", line, "\n");
  }
  return text;
}

std::string StateWord(const NodeState& state) {
  if (state.has_ended) return "ended";
  return state.is_silent ? "silent" : "alive";
}

}  // namespace

HangReport ExplainHang(const JobTrace& job) { return HangFinder(job).Find(); }

std::vector<size_t> NodesToAsk(const JobTrace& job, const HangReport& report) {
  std::set<NodeId> missing;
  for (const OpenRound& round : report.rounds) {
    missing.insert(round.missing.begin(), round.missing.end());
  }
  std::vector<size_t> asked;
  for (size_t i = 0; i < report.nodes.size(); ++i) {
    const TraceFacts& facts = job.nodes[report.nodes[i].node].trace.facts;
    const bool is_program = facts.role != "server" && !report.nodes[i].has_ended;
    if (is_program && (missing.empty() || missing.contains(facts.node))) asked.push_back(i);
  }
  return asked;
}

std::string HangText(const JobTrace& job, const HangReport& report) {
  std::string text = report.sentence + ".\n";
  for (const std::string& warning : job.warnings) absl::StrAppend(&text, "note: ", warning, "\n");
  TableRows rows = {{"NODE", "HOST", "PID", "STATE", "SIGN S AGO", "OPEN", "LAST ENDED", "S AGO",
                     "LAST MARK", "S AGO"}};
  const auto seconds = [](const std::string& what, double age) {
    return what.empty() ? "-" : absl::StrFormat("%.1f", age);
  };
  for (const NodeState& state : report.nodes) {
    const TraceFacts& facts = job.nodes[state.node].trace.facts;
    rows.push_back({job.NodeName(state.node), facts.host, absl::StrCat(facts.pid), StateWord(state),
                    absl::StrFormat("%.1f", state.sign_age_s),
                    facts.role == "worker" ? absl::StrCat(state.open_exchanges) : "-",
                    state.last.empty() ? "-" : state.last, seconds(state.last, state.last_age_s),
                    state.last_mark.empty() ? "-" : state.last_mark,
                    seconds(state.last_mark, state.last_mark_age_s)});
  }
  absl::StrAppend(&text, "\n", TextTable(rows));
  for (const NodeState& state : report.nodes) absl::StrAppend(&text, StackText(job, state));
  if (report.rounds.empty()) return text;
  TableRows rounds = {{"OPEN ROUND", "STEP", "PUSHED BY", "WAITS FOR"}};
  const auto names = [&job](const std::vector<NodeId>& nodes) {
    return nodes.empty() ? "-" : absl::StrJoin(nodes, ", ", [&](std::string* out, NodeId node) {
      const auto index = job.IndexOf(node);
      absl::StrAppend(out, index ? job.NodeName(*index) : absl::StrCat("node ", node));
    });
  };
  for (size_t i = 0; i < std::min(report.rounds.size(), kRoundsShown); ++i) {
    const OpenRound& round = report.rounds[i];
    rounds.push_back({job.NameOf(round.key), absl::StrCat(round.step), names(round.pushed),
                      names(round.missing)});
  }
  absl::StrAppend(&text, "\n", TextTable(rounds));
  if (report.rounds.size() > kRoundsShown) {
    absl::StrAppendFormat(&text, "and %d more\n", report.rounds.size() - kRoundsShown);
  }
  return text;
}

std::string HangJson(const JobTrace& job, const HangReport& report) {
  Json json = {{"job", job.job},
               {"sentence", report.sentence},
               {"warnings", job.warnings},
               {"nodes", Json::array()},
               {"open_rounds", Json::array()}};
  for (const NodeState& state : report.nodes) {
    const TraceFacts& facts = job.nodes[state.node].trace.facts;
    json["nodes"].push_back({{"name", job.NodeName(state.node)},
                             {"node", facts.node},
                             {"host", facts.host},
                             {"pid", facts.pid},
                             {"state", StateWord(state)},
                             {"sign_age_s", state.sign_age_s},
                             {"open_exchanges", state.open_exchanges},
                             {"last", state.last},
                             {"last_age_s", state.last_age_s},
                             {"last_mark", state.last_mark},
                             {"last_mark_age_s", state.last_mark_age_s}});
    if (!state.stack.empty()) json["nodes"].back()["stack"] = state.stack;
    if (!state.why_no_stack.empty()) json["nodes"].back()["why_no_stack"] = state.why_no_stack;
  }
  for (const OpenRound& round : report.rounds) {
    json["open_rounds"].push_back({{"tensor", job.NameOf(round.key)},
                                   {"key", round.key},
                                   {"step", round.step},
                                   {"pushed", round.pushed},
                                   {"missing", round.missing}});
  }
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace bdn
