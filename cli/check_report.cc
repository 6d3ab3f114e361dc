#include "cli/check_report.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"

namespace bdn::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMostInTable = 16;  // workers or servers
constexpr size_t kWorst = 10;        // pairs that are shown of more

// A figure of pairs as a table shows it.
struct Column {
  const char* title;
  double LinkFigures::*figure;
  bool is_rate;
};
constexpr Column kColumns[] = {
    {"up, workers to servers", &LinkFigures::up, true},
    {"down, servers to workers", &LinkFigures::down, true},
    {"round trip of 256 bytes", &LinkFigures::round_trip, false},
};

// Returns a unit in which a figure of this size has few digits before its point.
std::pair<const char*, double> UnitOf(double figure, bool is_rate) {
  if (!is_rate) return figure < 10e-3 ? std::pair("us", 1e-6) : std::pair("ms", 1e-3);
  if (figure < 1e6) return {"kbit/s", 1e3};
  if (figure < 10e9) return {"Mbit/s", 1e6};
  return {"Gbit/s", 1e9};
}

std::string CellText(double figure, double unit) {
  return figure > 0 ? absl::StrFormat("%.1f", figure / unit) : "-";
}

std::vector<double> MeasuredOf(const JobFigures& figures, double LinkFigures::*figure) {
  std::vector<double> values;
  for (const LinkFigures& link : figures.links) {
    if (link.*figure > 0) values.push_back(link.*figure);
  }
  return values;
}

const std::string& HostOf(const JobFigures& figures, int machine) {
  return figures.places.hosts[static_cast<size_t>(machine)];
}

std::string NameOfWorker(const JobFigures& figures, int rank) {
  return absl::StrFormat("worker %d %s", rank,
                         HostOf(figures, figures.places.workers[static_cast<size_t>(rank)]));
}

std::string NameOfServer(const JobFigures& figures, int rank) {
  return absl::StrFormat("server %d %s", rank,
                         HostOf(figures, figures.places.servers[static_cast<size_t>(rank)]));
}

std::string WholeTable(const JobFigures& figures, const Column& column) {
  const auto [unit, size] = UnitOf(MedianOf(MeasuredOf(figures, column.figure)), column.is_rate);
  const int servers = static_cast<int>(figures.places.servers.size());
  std::vector<std::string> names;
  int widest = 0;
  for (int w = 0; w < std::ssize(figures.places.workers); ++w) {
    names.push_back(NameOfWorker(figures, w));
    widest = std::max(widest, static_cast<int>(names.back().size()));
  }
  std::string text = absl::StrFormat("%s, %s\n%*s", column.title, unit, widest, "");
  for (int s = 0; s < servers; ++s) absl::StrAppendFormat(&text, "  server %-3d", s);
  text += "\n";
  for (int w = 0; w < std::ssize(names); ++w) {
    absl::StrAppendFormat(&text, "%-*s", widest, names[static_cast<size_t>(w)]);
    for (int s = 0; s < servers; ++s) {
      absl::StrAppendFormat(&text, "  %10s", CellText(figures.at({w, s}).*column.figure, size));
    }
    text += "\n";
  }
  return text;
}

std::string WorstPairs(const JobFigures& figures, const Column& column) {
  const std::vector<double> values = MeasuredOf(figures, column.figure);
  if (values.empty()) return "";
  const auto [unit, size] = UnitOf(MedianOf(values), column.is_rate);
  std::vector<NodePair> pairs;
  for (const NodePair& pair : AllPairs(figures.places)) {
    if (figures.at(pair).*column.figure > 0) pairs.push_back(pair);
  }
  std::stable_sort(pairs.begin(), pairs.end(), [&](const NodePair& a, const NodePair& b) {
    const double first = figures.at(a).*column.figure;
    const double second = figures.at(b).*column.figure;
    return column.is_rate ? first < second : first > second;
  });
  std::string text = absl::StrFormat(
      "%s, %s: median %s, least %s, most %s of %d pairs; the worst:\n", column.title, unit,
      CellText(MedianOf(values), size),
      CellText(*std::min_element(values.begin(), values.end()), size),
      CellText(*std::max_element(values.begin(), values.end()), size), values.size());
  for (size_t i = 0; i < std::min(kWorst, pairs.size()); ++i) {
    absl::StrAppendFormat(
        &text, "  %10s  %s, %s\n", CellText(figures.at(pairs[i]).*column.figure, size),
        NameOfWorker(figures, pairs[i].worker), NameOfServer(figures, pairs[i].server));
  }
  return text;
}

std::string MachineTable(const JobFigures& figures) {
  std::vector<size_t> measured;
  size_t widest = 7;
  for (size_t i = 0; i < figures.machines.size(); ++i) {
    if (figures.machines[i].share <= 0) continue;
    measured.push_back(i);
    widest = std::max(widest, figures.places.hosts[i].size());
  }
  const bool has_more = measured.size() > kMostInTable;
  if (has_more) {
    std::stable_sort(measured.begin(), measured.end(), [&](size_t a, size_t b) {
      return figures.machines[a].memory < figures.machines[b].memory;
    });
    measured.resize(kWorst);
  }
  std::string text = absl::StrFormat(
      "machines%s: a thread's copies and codec (%s) in GB/s, loopback in Gbit/s\n%-*s  %6s  %6s  "
      "%8s  %5s  %6s\n",
      has_more ? " with workers, the ten that copy most slowly" : " with workers", figures.codec,
      static_cast<int>(widest), "machine", "memory", "codec", "loopback", "cores", "load");
  for (const size_t i : measured) {
    const MachineFigures& machine = figures.machines[i];
    absl::StrAppendFormat(&text, "%-*s  %6s  %6s  %8s  %5.0f  %6.1f\n", static_cast<int>(widest),
                          figures.places.hosts[i],
                          machine.memory > 0 ? absl::StrFormat("%.2f", machine.memory / 1e9) : "-",
                          machine.codec > 0 ? absl::StrFormat("%.2f", machine.codec / 1e9) : "-",
                          CellText(machine.loopback, 1e9), machine.processors, machine.load);
  }
  return text;
}

std::string TogetherText(const JobFigures& figures) {
  if (figures.all_up <= 0 || figures.all_down <= 0) {
    return "all at once: not measured, as that would take too long over these links\n";
  }
  if (figures.places.hosts.size() < 2) {
    return absl::StrFormat("all at once: up %s, down %s\n", RateText(figures.all_up),
                           RateText(figures.all_down));
  }
  const auto bound = [&](bool is_up) {
    const LinkSums sums = SumsOfLinks(figures, is_up);
    return RateText(std::min(sums.workers, sums.servers));
  };
  return absl::StrFormat(
      "all at once: up %s, down %s; their links alone would carry up %s, down %s\n",
      RateText(figures.all_up), RateText(figures.all_down), bound(true), bound(false));
}

Json FigureJson(double figure) { return figure > 0 ? Json(figure) : Json(nullptr); }
Json NumberJson(int number) { return number >= 0 ? Json(number) : Json(nullptr); }

Json NodesJson(const JobFigures& figures, const std::vector<int>& machines) {
  Json list = Json::array();
  for (size_t rank = 0; rank < machines.size(); ++rank) {
    list.push_back({{"rank", rank}, {"host", HostOf(figures, machines[rank])}});
  }
  return list;
}

}  // namespace

std::string RateText(double bits) {
  if (bits < 1e6) return absl::StrFormat("%.1f kbit/s", bits / 1e3);
  if (bits < 1e9) return absl::StrFormat("%.1f Mbit/s", bits / 1e6);
  return absl::StrFormat("%.2f Gbit/s", bits / 1e9);
}

std::string SecondsText(double seconds) {
  if (seconds < 1e-3) return absl::StrFormat("%.0f us", seconds * 1e6);
  return absl::StrFormat("%.1f ms", seconds * 1e3);
}

std::string CheckText(const JobFigures& figures, std::span<const Verdict> verdicts) {
  const bool fits = figures.places.workers.size() <= kMostInTable &&
                    figures.places.servers.size() <= kMostInTable;
  std::string text;
  for (const Column& column : kColumns) {
    text += fits ? WholeTable(figures, column) : WorstPairs(figures, column);
  }
  text += TogetherText(figures);
  text += MachineTable(figures);
  Findings findings;
  for (const Verdict& verdict : verdicts) findings.push_back(verdict.finding);
  const bool is_well = std::all_of(findings.begin(), findings.end(), [](const Finding& finding) {
    return finding.severity <= Severity::kNote;
  });
  if (is_well) {
    findings.push_back({.subject = "job", .seen = "nothing is slower than the rest of its kind"});
  }
  return text + DescribeFindings(findings);
}

std::string CheckJson(const JobFigures& figures, std::span<const Verdict> verdicts) {
  Json pairs = Json::array();
  for (int w = 0; w < std::ssize(figures.places.workers); ++w) {
    for (int s = 0; s < std::ssize(figures.places.servers); ++s) {
      const LinkFigures& link = figures.at({w, s});
      pairs.push_back({{"worker", w},
                       {"server", s},
                       {"up_bits_per_s", FigureJson(link.up)},
                       {"down_bits_per_s", FigureJson(link.down)},
                       {"round_trip_s", FigureJson(link.round_trip)}});
    }
  }
  Json machines = Json::array();
  for (size_t i = 0; i < figures.machines.size(); ++i) {
    const MachineFigures& machine = figures.machines[i];
    if (machine.share <= 0) continue;
    machines.push_back({{"host", figures.places.hosts[i]},
                        {"memory_bytes_per_s", FigureJson(machine.memory)},
                        {"codec_bytes_per_s", FigureJson(machine.codec)},
                        {"loopback_bits_per_s", FigureJson(machine.loopback)},
                        {"cores", machine.processors},
                        {"load", machine.load},
                        {"cpu_share", machine.share}});
  }
  Json told = Json::array();
  for (const Verdict& verdict : verdicts) {
    told.push_back(
        {{"level", SeverityName(verdict.finding.severity)},
         {"kind", verdict.kind},
         {"direction", verdict.direction.empty() ? Json(nullptr) : Json(verdict.direction)},
         {"worker", NumberJson(verdict.worker)},
         {"server", NumberJson(verdict.server)},
         {"host", verdict.machine >= 0 ? Json(HostOf(figures, verdict.machine)) : Json(nullptr)},
         {"factor", FigureJson(verdict.factor)},
         {"seen", verdict.finding.seen},
         {"remedy", verdict.finding.remedy}});
  }
  const Json all = {{"workers", NodesJson(figures, figures.places.workers)},
                    {"servers", NodesJson(figures, figures.places.servers)},
                    {"pairs", std::move(pairs)},
                    {"all_at_once",
                     {{"up_bits_per_s", FigureJson(figures.all_up)},
                      {"down_bits_per_s", FigureJson(figures.all_down)}}},
                    {"codec", figures.codec},
                    {"machines", std::move(machines)},
                    {"verdicts", std::move(told)}};
  return all.dump(-1, ' ', true, Json::error_handler_t::replace);
}

}  // namespace bdn::cli
