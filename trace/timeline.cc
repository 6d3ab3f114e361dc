#include "trace/timeline.h"

#include <algorithm>
#include <array>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status.h"
#include "common/telemetry/stage_times.h"

namespace bdn {
namespace {

using Json = nlohmann::ordered_json;
using FlowPoint = TimelineSlice::FlowPoint;

// The rows of a process, in this order from the top.
enum class Row : uint8_t { kSteps, kProgram, kUser, kWaiting, kThread };

// An event on its way to a track: a slice whose texts live elsewhere.
struct Placed {
  TimelineSlice slice;
  size_t first_flow = 0;
  size_t flows = 0;
};

// Slices that share a row. They are put on as few tracks as hold them without crossing.
struct RowSlices {
  std::string name;
  int64_t thread = 0;
  bool is_waiting = false;
  std::vector<Placed> slices;
  std::vector<FlowPoint> flows;

  void Add(const TimelineSlice& slice, std::span<const FlowPoint> points = {}) {
    slices.push_back({slice, flows.size(), points.size()});
    flows.insert(flows.end(), points.begin(), points.end());
  }
};

// Returns the lanes of slices, in the order of their begins: within a lane each slice lies in the
// one before it or behind it. Where slices wait for something none lies in another one.
std::vector<std::vector<const Placed*>> Lanes(const RowSlices& row) {
  std::vector<const Placed*> sorted;
  sorted.reserve(row.slices.size());
  for (const Placed& placed : row.slices) sorted.push_back(&placed);
  std::stable_sort(sorted.begin(), sorted.end(), [](const Placed* a, const Placed* b) {
    return std::pair(a->slice.begin_ns, -a->slice.end_ns) <
           std::pair(b->slice.begin_ns, -b->slice.end_ns);
  });
  std::vector<std::vector<const Placed*>> lanes;
  if (row.is_waiting) {
    std::set<std::pair<int64_t, size_t>> busy;  // until when, and the lane
    std::set<size_t> idle;
    for (const Placed* placed : sorted) {
      while (!busy.empty() && busy.begin()->first <= placed->slice.begin_ns) {
        idle.insert(busy.begin()->second);
        busy.erase(busy.begin());
      }
      if (idle.empty()) {
        idle.insert(lanes.size());
        lanes.emplace_back();
      }
      const size_t lane = *idle.begin();
      idle.erase(idle.begin());
      lanes[lane].push_back(placed);
      busy.insert({placed->slice.end_ns, lane});
    }
    return lanes;
  }
  std::vector<std::vector<int64_t>> open;  // by lane: the ends of the slices that are open
  for (const Placed* placed : sorted) {
    size_t lane = 0;
    for (; lane < lanes.size(); ++lane) {
      auto& ends = open[lane];
      while (!ends.empty() && ends.back() <= placed->slice.begin_ns) ends.pop_back();
      if (ends.empty() || ends.back() >= placed->slice.end_ns) break;
    }
    if (lane == lanes.size()) {
      lanes.emplace_back();
      open.emplace_back();
    }
    lanes[lane].push_back(placed);
    open[lane].push_back(placed->slice.end_ns);
  }
  return lanes;
}

bool IsWork(Stage stage) {
  switch (stage) {
    case Stage::kSum:
    case Stage::kRule:
    case Stage::kEncode:
    case Stage::kDecode:
    case Stage::kDeliver:
      return true;
    default:
      return false;
  }
}

class TimelineWriter {
 public:
  TimelineWriter(const JobTrace& job, int64_t real_minus_common_ns, const StepReport* step,
                 TimelineSink* sink)
      : job_(job), real_minus_common_ns_(real_minus_common_ns), step_(step), sink_(*sink) {
    for (uint32_t i = 0; i < job.nodes.size(); ++i) {
      node_names_[job.nodes[i].trace.facts.node] = job.NodeName(i);
      node_indexes_[job.nodes[i].trace.facts.node] = i;
    }
  }

  // Writes the critical path of the step as a process of its own, before those of the nodes.
  void WritePath() {
    sink_.Process(++process_, absl::StrCat("critical path of step ", step_->step), 0, {});
    const TimelineTrack track{.id = ++tracks_, .process = process_, .name = "the step waits for"};
    std::vector<std::string> names;
    names.reserve(step_->path.size());  // slices borrow them
    std::vector<TimelineSlice> slices;
    for (const PathPiece& piece : step_->path) {
      slices.push_back({.begin_ns = Real(piece.begin_ns),
                        .end_ns = Real(piece.end_ns),
                        .name = piece.kind,
                        .category = "path",
                        .subject = names.emplace_back(job_.NodeName(piece.node)),
                        .step = step_->step});
    }
    sink_.Track(track);
    sink_.Slices(track, slices);
  }

  void WriteNode(uint32_t index, std::span<const TorchProfile* const> profiles) {
    index_ = index;
    const NodeTrace& trace = job_.nodes[index].trace;
    ++process_;
    sink_.Process(process_, job_.NodeName(index), trace.facts.pid, Labels(job_.nodes[index]));
    rows_.clear();
    for (const TraceRecord& record : trace.records) Place(trace, record);
    for (auto& [key, row] : rows_) WriteRow(row);
    rows_.clear();
    WriteMachine(trace);
    WriteLinks(trace);
    for (const TorchProfile* profile : profiles) WriteProfile(*profile);
  }

 private:
  using RowKey = std::tuple<Row, uint32_t>;

  static std::vector<std::string> Labels(const JobNode& node) {
    const TraceFacts& facts = node.trace.facts;
    std::vector<std::string> labels = {absl::StrFormat("%s pid %d", facts.host, facts.pid)};
    if (node.clock.basis() == ClockMap::Basis::kExchanges) {
      labels.push_back(absl::StrFormat("clock within %.1f us",
                                       static_cast<double>(node.clock.UncertaintyNs()) * 1e-3));
    } else if (node.clock.basis() == ClockMap::Basis::kTimeOfDay) {
      labels.emplace_back("clock by the time of day");
    }
    return labels;
  }

  // Tells whether something has no part in the step that is written, by times of the timeline. A
  // slice that only touches the step has none.
  bool IsOutside(int64_t begin_ns, int64_t end_ns) const {
    if (step_ == nullptr) return false;
    const int64_t touch = begin_ns == end_ns ? 0 : 1;
    return end_ns < Real(step_->begin_ns) + touch || begin_ns > Real(step_->end_ns) - touch;
  }

  int64_t Real(int64_t common_ns) const { return common_ns + real_minus_common_ns_; }

  const std::string& NameOf(uint64_t key) {
    const auto [found, is_new] = key_names_.emplace(key, std::string());
    if (is_new) found->second = job_.NameOf(key);
    return found->second;
  }
  std::string_view PeerName(NodeId node) const {
    const auto found = node_names_.find(node);
    return node == 0 || found == node_names_.end() ? std::string_view() : found->second;
  }

  // Puts a record into its row.
  void Place(const NodeTrace& trace, const TraceRecord& record) {
    TimelineSlice slice{.begin_ns = Real(record.begin_ns),
                        .end_ns = Real(EndOf(record)),
                        .name = TraceKindName(record.kind),
                        .category = "exchange",
                        .step = record.step,
                        // A worker has no peers, but the priorities of its pushes.
                        .peer = trace.facts.role == "server" ? PeerName(record.peer) : "",
                        .cpu_ns = int64_t{record.cpu_ticks} * kTraceTickNs};
    if (IsOutside(slice.begin_ns, slice.end_ns)) return;
    if (const auto stage = FindStage(record.kind)) {
      slice.subject = NameOf(record.key);
      slice.bytes = record.bytes;
      const bool is_work = IsWork(*stage);
      RowSlices& row = is_work ? ThreadRow(trace, record.thread) : WaitingRow(record.kind);
      row.Add(slice, FlowsOf(trace, *stage, record));
      return;
    }
    slice.category = "program";
    switch (static_cast<TraceKind>(record.kind)) {
      case TraceKind::kStep:
        return NamedRow(Row::kSteps, "steps").Add(slice);
      case TraceKind::kUser:
        slice.subject = NameOf(record.key);
        return NamedRow(Row::kUser, "marks of the program").Add(slice);
      case TraceKind::kReady:
        slice.subject = NameOf(record.key);
        return NamedRow(Row::kProgram, "program").Add(slice);
      case TraceKind::kThreadSample:
      case TraceKind::kMachineSample:
      case TraceKind::kLinkSample:
      case TraceKind::kPathSample:
        return;
      default:
        return NamedRow(Row::kProgram, "program").Add(slice);
    }
  }

  RowSlices& NamedRow(Row row, const char* name) {
    RowSlices& slices = rows_[{row, 0}];
    slices.name = name;
    return slices;
  }
  RowSlices& WaitingRow(uint8_t kind) {
    RowSlices& slices = rows_[{Row::kWaiting, kind}];
    slices.name = TraceKindName(kind);
    slices.is_waiting = true;
    return slices;
  }
  RowSlices& ThreadRow(const NodeTrace& trace, uint16_t thread) {
    RowSlices& slices = rows_[{Row::kThread, thread}];
    if (!slices.name.empty()) return slices;
    if (thread == kTraceNoThread) {
      slices.name = "threads without a name";
    } else {
      slices.thread = trace.threads[thread].id;
      slices.name = absl::StrFormat("%s %d", trace.threads[thread].name, slices.thread);
    }
    return slices;
  }

  // Returns the places in the flows of exchanges: push, sum, reply and decoding are tied together.
  std::vector<FlowPoint> FlowsOf(const NodeTrace& trace, Stage stage, const TraceRecord& record) {
    using Flow = TimelineSlice::Flow;
    if (record.step == 0 || (record.flags & kTraceCountedElsewhere) != 0) return {};
    std::vector<FlowPoint> points;
    const auto add = [&](uint32_t exchange, Flow flow) {
      const Exchange& one = job_.exchanges[exchange];
      if (one.At(ExchangePoint::kEncoding) == kNoTime || one.End() == kNoTime) return;
      points.push_back({uint64_t{exchange} + 1, flow});
    };
    if (trace.facts.role == "worker") {
      const auto exchange = job_.FindExchange(record.key, record.step, index_);
      if (!exchange) return {};
      if (stage == Stage::kEncode) add(*exchange, Flow::kBegin);
      if (stage == Stage::kSend) add(*exchange, Flow::kStep);
      if (stage == Stage::kDecode) add(*exchange, Flow::kEnd);
    } else if (stage == Stage::kSum || stage == Stage::kReply) {
      const auto worker = node_indexes_.find(record.peer);
      if (record.peer == 0 || worker == node_indexes_.end()) return {};
      const auto exchange = job_.FindExchange(record.key, record.step, worker->second);
      if (exchange) add(*exchange, Flow::kStep);
    } else if (stage == Stage::kEncode) {
      for (const uint32_t exchange : job_.ExchangesOf(record.key, record.step)) {
        add(exchange, Flow::kStep);
      }
    }
    return points;
  }

  void WriteRow(const RowSlices& row) {
    bool is_first = true;
    for (const auto& lane : Lanes(row)) {
      TimelineTrack track{.id = ++tracks_,
                          .process = process_,
                          .thread = is_first ? row.thread : 0,
                          .name = row.name,
                          .is_waiting = row.is_waiting};
      is_first = false;
      std::vector<TimelineSlice> slices;
      slices.reserve(lane.size());
      for (const Placed* placed : lane) {
        slices.push_back(placed->slice);
        slices.back().flows = std::span(row.flows).subspan(placed->first_flow, placed->flows);
      }
      sink_.Track(track);
      sink_.Slices(track, slices);
    }
  }

  // Counts on a track of this node, which is there from its first count on.
  void Count(TimelineTrack* track, int64_t at, double value) {
    if (track->id == 0) {
      track->id = ++tracks_;
      track->process = process_;
      track->is_counter = true;
      sink_.Track(*track);
    }
    sink_.Count(*track, at, value);
  }

  void WriteMachine(const NodeTrace& trace) {
    TimelineTrack busy{.name = "processors of the machine that are busy"};
    TimelineTrack runnable{.name = "processes of the machine that can run"};
    for (const TraceRecord& record : trace.records) {
      if (record.kind != static_cast<uint8_t>(TraceKind::kMachineSample) || record.wall_ns == 0) {
        continue;
      }
      const int64_t at = Real(EndOf(record));
      if (IsOutside(at, at)) continue;
      Count(&busy, at, static_cast<double>(record.key) / static_cast<double>(record.wall_ns));
      Count(&runnable, at, record.bytes);
    }
  }

  void WriteLinks(const NodeTrace& trace) {
    struct Tracks {
      TimelineTrack sent;
      TimelineTrack received;
      TimelineTrack round_trip;
    };
    std::map<NodeId, Tracks> by_peer;
    for (const TraceRecord& record : trace.records) {
      const auto kind = static_cast<TraceKind>(record.kind);
      const int64_t at = Real(EndOf(record));
      const bool is_link = kind == TraceKind::kLinkSample && record.wall_ns > 0;
      if ((!is_link && kind != TraceKind::kPathSample) || IsOutside(at, at)) continue;
      const auto [found, is_new] = by_peer.try_emplace(record.peer);
      Tracks& tracks = found->second;
      if (is_new) {
        const std::string peer = job_.NodeNameOf(record.peer);
        tracks.sent.name = "MB/s to " + peer;
        tracks.received.name = "MB/s from " + peer;
        tracks.round_trip.name = "round trip in ms to " + peer;
      }
      if (is_link) {
        const double seconds = static_cast<double>(record.wall_ns) * 1e-9;
        Count(&tracks.sent, at, static_cast<double>(record.key) * 1e-6 / seconds);
        Count(&tracks.received, at, static_cast<double>(record.step) * 1e-6 / seconds);
      } else {
        Count(&tracks.round_trip, at, static_cast<double>(record.step) * 1e-6);
      }
    }
  }

  // Writes a profile of this node's process, whose times are those of its machine's time of day.
  void WriteProfile(const TorchProfile& profile) {
    std::map<std::pair<std::string, std::string>, RowSlices> rows;
    for (const TorchEvent& event : profile.events) {
      const int64_t begin_ns = FromTimeOfDay(event.begin_ns);
      const int64_t end_ns = begin_ns + (event.end_ns - event.begin_ns);
      if (IsOutside(begin_ns, end_ns)) continue;
      RowSlices& row = rows[{event.process, event.thread}];
      row.Add({.begin_ns = begin_ns,
               .end_ns = end_ns,
               .name = event.name,
               .category = event.category,
               .more = event.args});
    }
    for (auto& [place, row] : rows) {
      row.name = absl::StrCat("torch ", ProfileRowName(profile, place));
      WriteRow(row);
    }
  }

  std::string ProfileRowName(const TorchProfile& profile,
                             const std::pair<std::string, std::string>& place) const {
    const bool is_own = place.first == absl::StrCat(job_.nodes[index_].trace.facts.pid);
    std::string name;
    for (const auto& [process, text] : profile.process_names) {
      if (process == place.first && !is_own) name = absl::StrCat(text, " ", process, " ");
    }
    if (name.empty() && !is_own) name = place.first + " ";
    for (const auto& [thread, text] : profile.thread_names) {
      if (thread == place) return name + text;
    }
    return name + place.second;
  }

  // Returns a time of the day of this node's machine as one of the timeline.
  int64_t FromTimeOfDay(int64_t ns) const {
    const auto& pairs = job_.nodes[index_].trace.clocks;
    if (pairs.empty()) return ns;
    const auto nearest =
        std::min_element(pairs.begin(), pairs.end(), [ns](const auto& a, const auto& b) {
          return std::abs(a.real_ns - ns) < std::abs(b.real_ns - ns);
        });
    return Real(nearest->monotonic_ns + (ns - nearest->real_ns));
  }

  const JobTrace& job_;
  const int64_t real_minus_common_ns_;
  const StepReport* const step_;
  TimelineSink& sink_;
  absl::flat_hash_map<NodeId, std::string> node_names_;
  absl::flat_hash_map<NodeId, uint32_t> node_indexes_;
  std::map<uint64_t, std::string> key_names_;  // whose texts stay where they are
  uint64_t tracks_ = 0;
  // Of the node that is being written.
  uint32_t index_ = 0;
  uint64_t process_ = 0;
  std::map<RowKey, RowSlices> rows_;
};

// Returns the node whose process wrote a profile.
absl::StatusOr<uint32_t> NodeOf(const JobTrace& job, const TorchProfile& profile) {
  std::set<std::string> processes;
  for (const TorchEvent& event : profile.events) processes.insert(event.process);
  std::vector<uint32_t> by_pid;
  std::vector<uint32_t> by_rank;
  for (uint32_t i = 0; i < job.nodes.size(); ++i) {
    const TraceFacts& facts = job.nodes[i].trace.facts;
    if (facts.role == "server") continue;
    const bool has_pid = processes.contains(absl::StrCat(facts.pid));
    if (profile.rank && facts.rank == *profile.rank) by_rank.push_back(i);
    if (has_pid && (!profile.rank || facts.rank == *profile.rank)) by_pid.push_back(i);
  }
  if (by_pid.size() == 1) return by_pid[0];
  if (by_rank.size() == 1) return by_rank[0];
  if (profile.rank) {
    return InvalidArgument("%s is a profile of rank %d, of which there %s", profile.path,
                           *profile.rank,
                           by_rank.empty() ? "is no recording" : "are several recordings");
  }
  return InvalidArgument(
      "%s does not say of which rank it is, and its processes are none of the recordings': say "
      "--torch RANK=%s",
      profile.path, profile.path);
}

std::string AboutJob(const JobTrace& job) {
  Json about = {{"job", job.job}, {"clocks", Json::array()}, {"warnings", job.warnings}};
  static constexpr const char* kBases[] = {"same clock", "exchanges", "time of day"};
  for (uint32_t i = 0; i < job.nodes.size(); ++i) {
    const ClockMap& clock = job.nodes[i].clock;
    about["clocks"].push_back({{"node", job.NodeName(i)},
                               {"host", job.nodes[i].trace.facts.host},
                               {"by", kBases[static_cast<size_t>(clock.basis())]},
                               {"offset_ns", clock.OffsetNs()},
                               {"drift_ppm", clock.drift() * 1e6},
                               {"uncertainty_ns", clock.UncertaintyNs()}});
  }
  return about.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace

absl::Status WriteTimeline(const JobTrace& job, std::span<const TorchProfile> profiles,
                           const std::string& path, const TimelineOptions& options) {
  const bool is_json = absl::EndsWith(path, ".json") || absl::EndsWith(path, ".json.gz");
  const bool is_picture = absl::EndsWith(path, ".svg");
  if (!is_json && !is_picture && !absl::EndsWith(path, ".pftrace")) {
    return InvalidArgument("%s: expected a name that ends in .json, .json.gz, .pftrace or .svg",
                           path);
  }
  std::vector<std::vector<const TorchProfile*>> profiles_of(job.nodes.size());
  for (const TorchProfile& profile : profiles) {
    BDN_ASSIGN_OR_RETURN(const uint32_t node, NodeOf(job, profile));
    profiles_of[node].push_back(&profile);
  }
  // The time of day of the machine whose clock is the common one.
  const int64_t real_minus_common = job.nodes[0].real_minus_common_ns;
  const StepReport* const step = options.step;
  TimelineFacts facts{
      .base_ns = (step == nullptr ? job.FirstNs() : step->begin_ns) + real_minus_common,
      .job = job.job,
      .about = AboutJob(job),
      .end_ns = (step == nullptr ? job.LastNs() : step->end_ns) + real_minus_common,
      .title = absl::StrCat("job ", job.job)};
  if (step != nullptr) {
    absl::StrAppendFormat(&facts.title, ", step %d: %.2f ms", step->step,
                          static_cast<double>(step->Duration()) * 1e-6);
  }
  absl::StatusOr<std::unique_ptr<TimelineSink>> sink =
      is_json      ? MakeJsonSink(path, facts, options.max_json_bytes)
      : is_picture ? MakeSvgSink(path, facts)
                   : MakePerfettoSink(path, facts);
  BDN_RETURN_IF_ERROR(sink.status());
  TimelineWriter writer(job, real_minus_common, step, sink->get());
  if (step != nullptr) writer.WritePath();
  for (uint32_t i = 0; i < job.nodes.size(); ++i) writer.WriteNode(i, profiles_of[i]);
  return (*sink)->Finish();
}

}  // namespace bdn
