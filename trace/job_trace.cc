#include "trace/job_trace.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <map>
#include <set>
#include <system_error>
#include <tuple>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/base/status.h"
#include "trace/exchange_join.h"

namespace bdn {
namespace {

constexpr const char* kPartNames[kNumExchangeParts] = {
    "queue",         "encode", "send",   "server_queue", "sum",    "hold",   "rule",
    "server_encode", "reply",  "answer", "decode_queue", "decode", "deliver"};

std::tuple<uint64_t, uint64_t, uint32_t> IdOf(const Exchange& exchange) {
  return {exchange.key, exchange.step, exchange.worker};
}

int RoleOrder(const std::string& role) { return role == "worker" ? 0 : role == "server" ? 1 : 2; }

// Adds what another recording of the same process has more: it may have been written several times.
void AddRecording(NodeTrace more, NodeTrace* trace) {
  const auto less = [](const TraceRecord& a, const TraceRecord& b) {
    return a.begin_ns != b.begin_ns ? a.begin_ns < b.begin_ns
                                    : memcmp(&a, &b, sizeof(TraceRecord)) < 0;
  };
  auto& records = trace->records;
  records.insert(records.end(), more.records.begin(), more.records.end());
  std::sort(records.begin(), records.end(), less);
  records.erase(std::unique(records.begin(), records.end(),
                            [](const auto& a, const auto& b) {
                              return memcmp(&a, &b, sizeof(TraceRecord)) == 0;
                            }),
                records.end());
  auto& clocks = trace->clocks;
  clocks.insert(clocks.end(), more.clocks.begin(), more.clocks.end());
  const auto earlier = [](const auto& a, const auto& b) { return a.monotonic_ns < b.monotonic_ns; };
  std::sort(clocks.begin(), clocks.end(), earlier);
  if (more.threads.size() > trace->threads.size()) trace->threads = std::move(more.threads);
  trace->names.merge(more.names);
  trace->ended_ns = std::max(trace->ended_ns, more.ended_ns);
  trace->blocks_overwritten += more.blocks_overwritten;
  trace->bytes_cut += more.bytes_cut;
  trace->records_bad += more.records_bad;
  trace->records_unknown += more.records_unknown;
  trace->records_lost = std::max(trace->records_lost, more.records_lost);
}

// Returns one recording a process, workers first.
std::vector<JobNode> NodesOf(std::vector<NodeTrace> traces) {
  const auto id_of = [](const NodeTrace& trace) {
    const TraceFacts& facts = trace.facts;
    return std::tuple(RoleOrder(facts.role), facts.rank, facts.node, facts.host, facts.pid);
  };
  std::stable_sort(traces.begin(), traces.end(),
                   [&](const auto& a, const auto& b) { return id_of(a) < id_of(b); });
  std::vector<JobNode> nodes;
  for (NodeTrace& trace : traces) {
    if (!nodes.empty() && id_of(nodes.back().trace) == id_of(trace)) {
      AddRecording(std::move(trace), &nodes.back().trace);
    } else {
      nodes.push_back({.trace = std::move(trace)});
    }
  }
  return nodes;
}

// Returns the median of what the time of day had more than the clock.
std::optional<int64_t> RealMinusMonotonic(const NodeTrace& trace) {
  std::vector<int64_t> differences;
  for (const TraceClockPair& pair : trace.clocks) {
    differences.push_back(pair.real_ns - pair.monotonic_ns);
  }
  if (differences.empty()) return std::nullopt;
  const auto middle = differences.begin() + static_cast<ptrdiff_t>(differences.size() / 2);
  std::nth_element(differences.begin(), middle, differences.end());
  return *middle;
}

// The clocks of a job: processes of one boot of a machine share one.
struct Clocks {
  std::vector<uint32_t> of;     // by node
  std::vector<uint32_t> first;  // by clock: the first node that has it
};

Clocks FindClocks(const std::vector<JobNode>& nodes) {
  Clocks clocks;
  std::map<std::string, uint32_t> by_boot;
  for (uint32_t i = 0; i < nodes.size(); ++i) {
    const std::string& boot = nodes[i].trace.facts.boot_id;
    const auto next = static_cast<uint32_t>(clocks.first.size());
    const auto clock = boot.empty() ? next : by_boot.emplace(boot, next).first->second;
    if (clock == next) clocks.first.push_back(i);
    clocks.of.push_back(clock);
  }
  return clocks;
}

void MoveTimes(const ClockMap& clock, NodeTrace* trace) {
  if (clock.basis() == ClockMap::Basis::kSameClock) return;
  for (TraceRecord& record : trace->records) record.begin_ns = clock.ToCommon(record.begin_ns);
  for (TraceClockPair& pair : trace->clocks) pair.monotonic_ns = clock.ToCommon(pair.monotonic_ns);
  if (trace->ended_ns != 0) trace->ended_ns = clock.ToCommon(trace->ended_ns);
  // A clock that jumped may have put some records in front of others.
  std::stable_sort(trace->records.begin(), trace->records.end(),
                   [](const auto& a, const auto& b) { return a.begin_ns < b.begin_ns; });
}

bool IsServerPoint(size_t point) {
  return point >= static_cast<size_t>(ExchangePoint::kArrived) &&
         point <= static_cast<size_t>(ExchangePoint::kReplySent);
}

void MoveTimes(const std::vector<JobNode>& nodes, Exchange* exchange) {
  for (size_t i = 0; i < kNumExchangePoints; ++i) {
    int64_t& at = exchange->points[i];
    if (at == kNoTime) continue;
    const size_t node = IsServerPoint(i) ? static_cast<size_t>(exchange->server) : exchange->worker;
    at = nodes[node].clock.ToCommon(at);
  }
}

void AlignNodes(JobTrace* job) {
  const Clocks clocks = FindClocks(job->nodes);
  std::vector<std::optional<int64_t>> time_of_day;
  for (const uint32_t first : clocks.first) {
    time_of_day.push_back(RealMinusMonotonic(job->nodes[first].trace));
  }
  const auto bounds = BoundsOf(job->exchanges, clocks.of);
  const auto maps = AlignClocks(static_cast<uint32_t>(clocks.first.size()), bounds, time_of_day);
  for (uint32_t i = 0; i < job->nodes.size(); ++i) {
    JobNode& node = job->nodes[i];
    node.clock = maps[clocks.of[i]];
    MoveTimes(node.clock, &node.trace);
    node.real_minus_common_ns = RealMinusMonotonic(node.trace).value_or(0);
    if (clocks.first[clocks.of[i]] != i) continue;
    for (const int64_t at : node.clock.jumps()) {
      job->warnings.push_back(absl::StrFormat(
          "the clock of %s (%s) jumped about %.1f s after the first record: times around there are "
          "not sure",
          node.trace.facts.host, node.trace.facts.Name(),
          static_cast<double>(node.clock.ToCommon(at) - job->FirstNs()) * 1e-9));
    }
    if (node.clock.basis() == ClockMap::Basis::kTimeOfDay) {
      job->warnings.push_back(absl::StrFormat(
          "no exchange ties the clock of %s (%s) to the others: its times go by its time of day",
          node.trace.facts.host, node.trace.facts.Name()));
    }
  }
  for (Exchange& exchange : job->exchanges) MoveTimes(job->nodes, &exchange);
}

void WarnOfMissingRanks(JobTrace* job) {
  std::map<std::pair<int, Rank>, NodeId> expected;
  std::set<NodeId> there;
  std::set<std::pair<int, Rank>> ranks;
  for (const JobNode& node : job->nodes) {
    const TraceFacts& facts = node.trace.facts;
    there.insert(facts.node);
    ranks.insert({RoleOrder(facts.role), facts.rank});
    for (size_t i = 0; i < facts.workers.size(); ++i) {
      if (facts.workers[i] != 0) expected[{0, static_cast<Rank>(i)}] = facts.workers[i];
    }
    for (size_t i = 0; i < facts.servers.size(); ++i) {
      if (facts.servers[i] != 0) expected[{1, static_cast<Rank>(i)}] = facts.servers[i];
    }
  }
  std::vector<std::string> missing;
  for (const auto& [role_and_rank, node] : expected) {
    if (there.contains(node) || ranks.contains(role_and_rank)) continue;
    missing.push_back(
        absl::StrCat(role_and_rank.first == 0 ? "worker " : "server ", role_and_rank.second));
  }
  if (missing.empty()) return;
  job->warnings.push_back(absl::StrFormat("there is no recording of %s: what %s did is not known",
                                          absl::StrJoin(missing, ", "),
                                          missing.size() == 1 ? "it" : "they"));
}

void WarnOfLosses(JobTrace* job) {
  for (const JobNode& node : job->nodes) {
    const NodeTrace& trace = node.trace;
    std::vector<std::string> losses;
    const auto add = [&](uint64_t count, const char* what) {
      if (count > 0) losses.push_back(absl::StrCat(count, " ", what));
    };
    add(trace.blocks_overwritten, "blocks were overwritten while they were read");
    add(trace.bytes_cut, "bytes of its last block are cut off");
    add(trace.records_bad, "records had impossible numbers");
    add(trace.records_unknown, "records were of kinds that this program does not know");
    add(trace.records_lost, "records found no room");
    add(trace.names_lost, "names found no room");
    if (losses.empty()) continue;
    job->warnings.push_back(absl::StrFormat("the recording of %s is not whole: %s",
                                            trace.facts.Name(), absl::StrJoin(losses, ", ")));
  }
}

void ListExchanges(JobTrace* job) {
  for (uint32_t i = 0; i < job->exchanges.size(); ++i) {
    job->nodes[job->exchanges[i].worker].exchanges.push_back(i);
  }
  const auto ends_at = [job](uint32_t index) {
    const int64_t end = job->exchanges[index].End();
    return end == kNoTime ? std::numeric_limits<int64_t>::max() : end;
  };
  for (JobNode& node : job->nodes) {
    std::sort(node.exchanges.begin(), node.exchanges.end(), [&](uint32_t a, uint32_t b) {
      return std::pair(ends_at(a), a) < std::pair(ends_at(b), b);
    });
  }
}

// Returns the paths of the recordings in a directory, by name.
absl::StatusOr<std::vector<std::string>> FindTraces(const std::string& directory) {
  std::vector<std::string> paths;
  std::error_code error;
  std::filesystem::directory_iterator entries(directory, error);
  if (error) return NotFound("%s cannot be read: %s", directory, error.message());
  for (; entries != std::filesystem::directory_iterator(); entries.increment(error)) {
    if (error) return NotFound("%s cannot be read: %s", directory, error.message());
    const std::string path = entries->path().string();
    if (absl::EndsWith(path, kTraceSuffix)) paths.push_back(path);
  }
  std::sort(paths.begin(), paths.end());
  if (paths.empty()) {
    return NotFound("%s has no recording (*%s): run the job with setting trace=%s", directory,
                    kTraceSuffix, directory);
  }
  return paths;
}

// Returns the job to read.
absl::StatusOr<std::string> ChooseJob(const std::string& directory, const std::string& wanted,
                                      const std::map<std::string, int>& jobs) {
  const std::string names = absl::StrJoin(jobs, ", ", [](std::string* out, const auto& job) {
    absl::StrAppend(out, "'", job.first, "' (", job.second, job.second == 1 ? " file)" : " files)");
  });
  if (!wanted.empty()) {
    if (jobs.contains(wanted)) return wanted;
    return InvalidArgument("%s has no recording of job '%s': it has %s", directory, wanted, names);
  }
  if (jobs.size() == 1) return jobs.begin()->first;
  return InvalidArgument("%s has recordings of %d jobs: %s; choose one by --job NAME", directory,
                         jobs.size(), names);
}

}  // namespace

std::string_view ExchangePartName(ExchangePart part) {
  return kPartNames[static_cast<size_t>(part)];
}

int64_t Exchange::Begin() const {
  int64_t begin = kNoTime;
  for (const int64_t at : points) {
    if (at != kNoTime && (begin == kNoTime || at < begin)) begin = at;
  }
  return begin;
}

int64_t Exchange::End() const {
  const int64_t decoded = At(ExchangePoint::kDecoded);
  return decoded != kNoTime ? decoded : At(ExchangePoint::kEnded);
}

std::vector<PartSpan> PartsOf(const Exchange& exchange) {
  struct Boundary {
    ExchangePart part;
    ExchangePoint until;
  };
  static constexpr Boundary kWithServer[] = {{ExchangePart::kQueue, ExchangePoint::kEncoding},
                                             {ExchangePart::kEncode, ExchangePoint::kSending},
                                             {ExchangePart::kSend, ExchangePoint::kArrived},
                                             {ExchangePart::kServerQueue, ExchangePoint::kTaken},
                                             {ExchangePart::kSum, ExchangePoint::kAccepted},
                                             {ExchangePart::kHold, ExchangePoint::kClosed},
                                             {ExchangePart::kSum, ExchangePoint::kSummed},
                                             {ExchangePart::kRule, ExchangePoint::kRuled},
                                             {ExchangePart::kServerEncode, ExchangePoint::kReplied},
                                             {ExchangePart::kReply, ExchangePoint::kReplyHere},
                                             {ExchangePart::kDecodeQueue, ExchangePoint::kDecoding},
                                             {ExchangePart::kDecode, ExchangePoint::kDecoded}};
  static constexpr Boundary kWithoutServer[] = {
      {ExchangePart::kQueue, ExchangePoint::kEncoding},
      {ExchangePart::kEncode, ExchangePoint::kSending},
      {ExchangePart::kSend, ExchangePoint::kSent},
      {ExchangePart::kAnswer, ExchangePoint::kReplyHere},
      {ExchangePart::kDecodeQueue, ExchangePoint::kDecoding},
      {ExchangePart::kDecode, ExchangePoint::kDecoded}};
  const bool has_server = exchange.At(ExchangePoint::kArrived) != kNoTime;
  const auto boundaries = has_server ? std::span<const Boundary>(kWithServer)
                                     : std::span<const Boundary>(kWithoutServer);
  std::vector<PartSpan> parts;
  const int64_t end = exchange.End();
  int64_t at = exchange.Begin();
  if (end == kNoTime) return parts;
  for (const auto& [part, until] : boundaries) {
    const int64_t ns = exchange.At(until);
    if (ns == kNoTime) continue;  // the next part that is recorded gets its time
    const int64_t next = std::clamp(ns, at, std::max(at, end));
    if (next > at) parts.push_back({part, at, next});
    at = next;
  }
  return parts;
}

std::optional<uint32_t> JobTrace::IndexOf(NodeId node) const {
  for (uint32_t i = 0; node != 0 && i < nodes.size(); ++i) {
    if (nodes[i].trace.facts.node == node) return i;
  }
  return std::nullopt;
}

std::optional<uint32_t> JobTrace::FindExchange(uint64_t key, uint64_t step, uint32_t worker) const {
  const std::tuple id(key, step, worker);
  const auto found =
      std::lower_bound(exchanges.begin(), exchanges.end(), id,
                       [](const Exchange& one, const auto& other) { return IdOf(one) < other; });
  if (found == exchanges.end() || IdOf(*found) != id) return std::nullopt;
  return static_cast<uint32_t>(found - exchanges.begin());
}

std::vector<uint32_t> JobTrace::ExchangesOf(uint64_t key, uint64_t step) const {
  const auto first =
      std::lower_bound(exchanges.begin(), exchanges.end(), std::tuple(key, step, 0U),
                       [](const Exchange& one, const auto& other) { return IdOf(one) < other; });
  std::vector<uint32_t> found;
  for (auto one = first; one != exchanges.end() && one->key == key && one->step == step; ++one) {
    found.push_back(static_cast<uint32_t>(one - exchanges.begin()));
  }
  return found;
}

std::string JobTrace::NodeNameOf(NodeId id) const {
  if (const auto index = IndexOf(id)) return NodeName(*index);
  if (const auto found = absent.find(id); found != absent.end()) return found->second.name;
  for (const JobNode& node : nodes) {
    const TraceFacts& facts = node.trace.facts;
    for (const auto& [ids, role] :
         {std::pair(&facts.workers, "worker "), std::pair(&facts.servers, "server ")}) {
      const auto found = std::find(ids->begin(), ids->end(), id);
      if (found != ids->end()) return absl::StrCat(role, found - ids->begin());
    }
  }
  return absl::StrCat("node ", id);
}

std::string JobTrace::NameOf(uint64_t key) const {
  for (const JobNode& node : nodes) {
    if (node.trace.names.contains(key)) return node.trace.NameOf(key);
  }
  return absl::StrCat("key ", Key{key}.ToString());
}

int64_t JobTrace::FirstNs() const {
  int64_t first = kNoTime;
  for (const JobNode& node : nodes) {
    if (node.trace.records.empty()) continue;
    const int64_t begin = node.trace.records.front().begin_ns;
    if (first == kNoTime || begin < first) first = begin;
  }
  return first == kNoTime ? 0 : first;
}

int64_t JobTrace::LastNs() const {
  int64_t last = kNoTime;
  for (const JobNode& node : nodes) {
    for (const TraceRecord& record : node.trace.records) last = std::max(last, EndOf(record));
  }
  return last == kNoTime ? 0 : last;
}

absl::StatusOr<JobTrace> JoinTraces(std::vector<NodeTrace> traces) {
  if (traces.empty()) return NotFound("there is no recording");
  JobTrace job{.job = traces[0].facts.job};
  for (const NodeTrace& trace : traces) {
    if (trace.facts.job == job.job) continue;
    return InvalidArgument("%s is of job '%s', and %s of job '%s'", traces[0].path, job.job,
                           trace.path, trace.facts.job);
  }
  job.nodes = NodesOf(std::move(traces));
  job.exchanges = JoinExchanges(job.nodes);
  std::sort(job.exchanges.begin(), job.exchanges.end(),
            [](const Exchange& a, const Exchange& b) { return IdOf(a) < IdOf(b); });
  AlignNodes(&job);
  ListExchanges(&job);
  WarnOfMissingRanks(&job);
  WarnOfLosses(&job);
  return job;
}

absl::StatusOr<JobTrace> ReadJob(const std::string& directory, const JobSelection& selection) {
  BDN_ASSIGN_OR_RETURN(const auto paths, FindTraces(directory));
  std::map<std::string, int> jobs;
  std::vector<std::pair<std::string, std::string>> job_of;  // path and job
  std::vector<std::string> refusals;
  for (const std::string& path : paths) {
    const auto facts = ReadTraceFacts(path);
    if (facts.ok()) {
      ++jobs[facts->job];
      job_of.emplace_back(path, facts->job);
    } else {
      refusals.emplace_back(facts.status().message());
    }
  }
  if (jobs.empty()) return DataLoss("%s", absl::StrJoin(refusals, "; "));
  BDN_ASSIGN_OR_RETURN(const std::string wanted, ChooseJob(directory, selection.job, jobs));
  TraceSelection records = selection.records;
  std::vector<NodeTrace> traces;
  for (const auto& [path, job] : job_of) {
    if (job != wanted) continue;
    absl::StatusOr<NodeTrace> trace = ReadTraceFile(path, records);
    if (absl::IsResourceExhausted(trace.status())) return trace.status();
    if (!trace.ok()) {
      refusals.emplace_back(trace.status().message());
      continue;
    }
    records.max_records -= trace->records.size();
    traces.push_back(*std::move(trace));
  }
  if (traces.empty()) return DataLoss("%s", absl::StrJoin(refusals, "; "));
  BDN_ASSIGN_OR_RETURN(JobTrace joined, JoinTraces(std::move(traces)));
  for (const std::string& refusal : refusals) {
    joined.warnings.push_back(refusal + "; the other recordings are read without it");
  }
  return joined;
}

}  // namespace bdn
