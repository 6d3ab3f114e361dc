// How a report of steps is printed.

#include <algorithm>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "trace/step_report.h"
#include "trace/text_table.h"

namespace bdn {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kSlowestShown = 5;

double Ms(double ns) { return ns * 1e-6; }
double Ms(int64_t ns) { return Ms(static_cast<double>(ns)); }
std::string MsText(double ns) { return absl::StrFormat("%.2f", Ms(ns)); }

// Sums of the exposed time of steps, by worker.
struct ExposedSums {
  std::map<uint32_t, ExposedTime> by_node;
  std::map<int32_t, int64_t> hold_by_worker;
  int64_t total_ns = 0;
};

ExposedSums SumExposed(const std::vector<const StepReport*>& steps) {
  ExposedSums sums;
  for (const StepReport* step : steps) {
    for (const auto& [node, exposed] : step->exposed) {
      ExposedTime& sum = sums.by_node[node];
      for (size_t i = 0; i < kNumExchangeParts; ++i) sum.by_part[i] += exposed.by_part[i];
      sum.without_exchange_ns += exposed.without_exchange_ns;
      for (const auto& [worker, ns] : exposed.hold_by_worker) {
        sum.hold_by_worker[worker] += ns;
        sums.hold_by_worker[worker] += ns;
      }
      sums.total_ns += exposed.Total();
    }
  }
  return sums;
}

std::vector<const StepReport*> Chosen(const JobReport& report, std::optional<uint64_t> step) {
  std::vector<const StepReport*> chosen;
  for (const StepReport& one : report.steps) {
    if (!step || one.step == *step) chosen.push_back(&one);
  }
  return chosen;
}

std::string WorkerName(const JobTrace& job, int32_t worker) {
  return worker < 0 ? "an unknown worker" : job.NodeName(static_cast<uint32_t>(worker));
}

// The columns of the table of exposed time: parts that took time anywhere.
std::vector<size_t> PartsThatTookTime(const ExposedSums& sums) {
  std::vector<size_t> parts;
  for (size_t i = 0; i < kNumExchangeParts; ++i) {
    const auto took = [i](const auto& entry) { return entry.second.by_part[i] > 0; };
    if (std::any_of(sums.by_node.begin(), sums.by_node.end(), took)) parts.push_back(i);
  }
  return parts;
}

std::string Upper(std::string_view text) {
  std::string upper(text);
  for (char& c : upper) c = c == '_' ? ' ' : static_cast<char>(toupper(c));
  return upper;
}

std::string ExposedText(const JobTrace& job, const std::vector<const StepReport*>& steps) {
  const ExposedSums sums = SumExposed(steps);
  const double count = static_cast<double>(std::max<size_t>(steps.size(), 1));
  const std::vector<size_t> parts = PartsThatTookTime(sums);
  TableRows rows = {{"NODE", "MS A STEP"}};
  for (const size_t part : parts) {
    rows[0].push_back(Upper(ExchangePartName(static_cast<ExchangePart>(part))));
  }
  for (const auto& [node, exposed] : sums.by_node) {
    auto& row = rows.emplace_back();
    row.push_back(job.NodeName(node));
    row.push_back(MsText(static_cast<double>(exposed.Total()) / count));
    for (const size_t part : parts) {
      row.push_back(MsText(static_cast<double>(exposed.by_part[part]) / count));
    }
  }
  std::string text =
      "Exposed communication (the program waits, and an exchange is open), means:\n" +
      TextTable(rows);
  std::string holds;
  for (const auto& [worker, ns] : sums.hold_by_worker) {
    const double a_step = static_cast<double>(ns) / count;
    if (Ms(a_step) < 0.005) continue;
    absl::StrAppendFormat(&holds, "%s%s %.2f ms", holds.empty() ? "" : ", ",
                          WorkerName(job, worker), Ms(a_step));
  }
  if (!holds.empty()) {
    absl::StrAppend(&text, "Of the holds, all nodes together, a step waited for: ", holds, "\n");
  }
  return text;
}

std::string KindsText(const JobTrace& job, const JobReport& report) {
  double all = 0;
  for (const auto& kind : report.kinds) all += kind.mean_ns;
  TableRows rows = {{"KIND", "MEDIAN MS", "MEAN MS", "SHARE", "MOST OF IT"}};
  for (const auto& kind : report.kinds) {
    const auto most =
        std::max_element(kind.mean_by_node.begin(), kind.mean_by_node.end(),
                         [](const auto& a, const auto& b) { return a.second < b.second; });
    const double share = all > 0 ? 100 * kind.mean_ns / all : 0;
    const double part = kind.mean_ns > 0 ? 100 * most->second / kind.mean_ns : 0;
    rows.push_back({kind.kind, MsText(static_cast<double>(kind.median_ns)), MsText(kind.mean_ns),
                    absl::StrFormat("%.1f%%", share),
                    absl::StrFormat("%s %.0f%%", job.NodeName(most->first), part)});
  }
  return "The critical path of a step, by what it waited for:\n" + TextTable(rows);
}

std::string PathText(const JobTrace& job, const StepReport& step) {
  TableRows rows = {{"AT MS", "MS", "NODE", "KIND"}};
  for (const PathPiece& piece : step.path) {
    rows.push_back({absl::StrFormat("+%.2f", Ms(piece.begin_ns - step.begin_ns)),
                    absl::StrFormat("%.2f", Ms(piece.end_ns - piece.begin_ns)),
                    job.NodeName(piece.node), piece.kind});
  }
  return absl::StrFormat("The critical path of step %d:\n", step.step) + TextTable(rows);
}

std::string SlowestText(const JobReport& report) {
  std::vector<const StepReport*> slowest;
  for (const StepReport& step : report.steps) {
    if (!step.reason.empty()) slowest.push_back(&step);
  }
  std::stable_sort(slowest.begin(), slowest.end(),
                   [](const auto* a, const auto* b) { return a->Duration() > b->Duration(); });
  if (slowest.size() > kSlowestShown) slowest.resize(kSlowestShown);
  if (slowest.empty()) return "No step took more than a tenth longer than the median.\n";
  std::string text = "The slowest steps:\n";
  for (const StepReport* step : slowest) absl::StrAppend(&text, "  ", step->reason, "\n");
  return text;
}

std::string HeadText(const JobTrace& job, const JobReport& report) {
  std::string text;
  const auto slowest =
      std::max_element(report.steps.begin(), report.steps.end(),
                       [](const auto& a, const auto& b) { return a.Duration() < b.Duration(); });
  if (slowest != report.steps.end()) {
    text = absl::StrFormat(
        "job %s: %d steps, %.2f ms in the median, %.2f ms the slowest (step %d)\n", job.job,
        report.steps.size(), Ms(report.median_ns), Ms(slowest->Duration()), slowest->step);
  } else {
    text = absl::StrFormat("job %s: no step has ended in these recordings\n", job.job);
  }
  if (!report.has_marks) {
    text +=
        "No program has marked its steps, so these are the steps of keys: exchanges alone. What "
        "the program\ncomputed, and whether it waited, is not known (docs/tracing.md says who "
        "marks).\n";
  }
  for (const std::string& warning : job.warnings) absl::StrAppend(&text, "note: ", warning, "\n");
  return text;
}

std::string LinksText(const JobTrace& job, const std::vector<LinkUse>& links) {
  TableRows rows = {{"FROM", "TO", "SECONDS", "MB/S OUT", "MB/S IN", "BUSY", "HELD BACK",
                     "SENT AGAIN", "CARRIES MB/S", "ROUND TRIP MS", "LEAST MS"}};
  const auto percent = [](double share) { return absl::StrFormat("%.1f%%", 100 * share); };
  const auto mb = [](double bytes) { return absl::StrFormat("%.2f", bytes * 1e-6); };
  for (const LinkUse& link : links) {
    const auto sent = static_cast<double>(std::max<uint64_t>(link.bytes_sent, 1));
    rows.push_back({job.NodeName(link.node), job.NodeNameOf(link.peer),
                    absl::StrFormat("%.1f", static_cast<double>(link.wall_ns) * 1e-9),
                    mb(link.SendRate()), mb(link.ReceiveRate()), percent(link.Share(link.busy_ns)),
                    percent(link.Share(link.held_back_ns)),
                    percent(static_cast<double>(link.bytes_sent_again) / sent),
                    link.rate > 0 ? mb(static_cast<double>(link.rate)) : "",
                    MsText(static_cast<double>(link.round_trip_ns)),
                    MsText(static_cast<double>(link.least_round_trip_ns))});
  }
  std::string text = "Connections of TCP, in the seconds in which they moved bytes:\n";
  text += TextTable(rows);
  for (const std::string& finding : LinkFindings(job, links)) {
    absl::StrAppend(&text, "  ", finding, "\n");
  }
  return text;
}

Json LinksJson(const JobTrace& job, const std::vector<LinkUse>& links) {
  Json all = Json::array();
  for (const LinkUse& link : links) {
    all.push_back({{"from", job.NodeName(link.node)},
                   {"to", job.NodeNameOf(link.peer)},
                   {"ms", Ms(static_cast<double>(link.wall_ns))},
                   {"bytes_sent", link.bytes_sent},
                   {"bytes_received", link.bytes_received},
                   {"bytes_sent_again", link.bytes_sent_again},
                   {"busy_ms", Ms(static_cast<double>(link.busy_ns))},
                   {"held_back_ms", Ms(static_cast<double>(link.held_back_ns))},
                   {"carries_bytes_a_second", link.rate},
                   {"round_trip_ms", Ms(static_cast<double>(link.round_trip_ns))},
                   {"least_round_trip_ms", Ms(static_cast<double>(link.least_round_trip_ns))}});
  }
  return all;
}

Json NodeJson(const JobTrace& job, uint32_t index) {
  const JobNode& node = job.nodes[index];
  static constexpr const char* kBases[] = {"same clock", "exchanges", "time of day"};
  return {{"name", job.NodeName(index)},
          {"host", node.trace.facts.host},
          {"pid", node.trace.facts.pid},
          {"records", node.trace.records.size()},
          {"clock",
           {{"by", kBases[static_cast<size_t>(node.clock.basis())]},
            {"offset_ns", node.clock.OffsetNs()},
            {"drift_ppm", node.clock.drift() * 1e6},
            {"uncertainty_ns", node.clock.UncertaintyNs()}}}};
}

Json ExposedJson(const JobTrace& job, const StepReport& step) {
  Json nodes = Json::object();
  for (const auto& [node, exposed] : step.exposed) {
    Json parts = Json::object();
    for (size_t i = 0; i < kNumExchangeParts; ++i) {
      parts[std::string(ExchangePartName(static_cast<ExchangePart>(i)))] = Ms(exposed.by_part[i]);
    }
    Json holds = Json::object();
    for (const auto& [worker, ns] : exposed.hold_by_worker) holds[WorkerName(job, worker)] = Ms(ns);
    nodes[job.NodeName(node)] = {{"ms", Ms(exposed.Total())},
                                 {"parts_ms", std::move(parts)},
                                 {"hold_by_worker_ms", std::move(holds)},
                                 {"waiting_without_exchange_ms", Ms(exposed.without_exchange_ns)}};
  }
  return nodes;
}

}  // namespace

std::string ReportText(const JobTrace& job, const JobReport& report, std::optional<uint64_t> step) {
  std::string text = HeadText(job, report);
  const std::vector<const StepReport*> steps = Chosen(report, step);
  if (steps.empty()) return text;
  if (step) {
    const StepReport& one = *steps[0];
    absl::StrAppendFormat(&text, "\n%s.\n\n",
                          !one.reason.empty() ? one.reason
                                              : absl::StrFormat("step %d took %.2f ms, about as "
                                                                "long as others",
                                                                one.step, Ms(one.Duration())));
    text += PathText(job, one);
    if (report.has_marks) absl::StrAppend(&text, "\n", ExposedText(job, steps));
    return text;
  }
  absl::StrAppend(&text, "\n", KindsText(job, report));
  if (report.has_marks) absl::StrAppend(&text, "\n", ExposedText(job, steps));
  absl::StrAppend(&text, "\n", SlowestText(report));
  if (!report.links.empty()) absl::StrAppend(&text, "\n", LinksText(job, report.links));
  return text;
}

std::string ReportJson(const JobTrace& job, const JobReport& report, std::optional<uint64_t> step) {
  Json json = {{"job", job.job},
               {"marks", report.has_marks},
               {"median_step_ms", Ms(report.median_ns)},
               {"warnings", job.warnings},
               {"nodes", Json::array()},
               {"critical_path", Json::array()},
               {"links", LinksJson(job, report.links)},
               {"link_findings", LinkFindings(job, report.links)},
               {"steps", Json::array()}};
  for (uint32_t i = 0; i < job.nodes.size(); ++i) json["nodes"].push_back(NodeJson(job, i));
  for (const auto& kind : report.kinds) {
    Json by_node = Json::object();
    for (const auto& [node, ns] : kind.mean_by_node) by_node[job.NodeName(node)] = Ms(ns);
    json["critical_path"].push_back({{"kind", kind.kind},
                                     {"median_ms", Ms(kind.median_ns)},
                                     {"mean_ms", Ms(kind.mean_ns)},
                                     {"mean_by_node_ms", std::move(by_node)}});
  }
  for (const StepReport* one : Chosen(report, step)) {
    Json path = Json::array();
    for (const PathPiece& piece : one->path) {
      path.push_back({{"at_ms", Ms(piece.begin_ns - one->begin_ns)},
                      {"ms", Ms(piece.end_ns - piece.begin_ns)},
                      {"node", job.NodeName(piece.node)},
                      {"kind", piece.kind}});
    }
    json["steps"].push_back({{"step", one->step},
                             {"at_ms", Ms(one->begin_ns - job.FirstNs())},
                             {"ms", Ms(one->Duration())},
                             {"reason", one->reason},
                             {"critical_path", std::move(path)},
                             {"exposed", ExposedJson(job, *one)}});
  }
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace bdn
