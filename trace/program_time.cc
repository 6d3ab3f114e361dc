#include "trace/program_time.h"

#include <algorithm>
#include <set>
#include <tuple>

namespace bdn {
namespace {

// A mark that can cover time.
struct Mark {
  int64_t begin_ns;
  int64_t end_ns;
  TraceKind kind;

  // The innermost one is the last in this order: it began last, and of those that began with it it
  // ends first.
  bool operator<(const Mark& other) const {
    return std::tuple(begin_ns, -end_ns, kind) <
           std::tuple(other.begin_ns, -other.end_ns, other.kind);
  }
};

bool CoversTime(TraceKind kind) {
  switch (kind) {
    case TraceKind::kForward:
    case TraceKind::kBackward:
    case TraceKind::kWaiting:
    case TraceKind::kOptimizer:
    case TraceKind::kCollection:
    case TraceKind::kInput:
      return true;
    default:
      return false;
  }
}

// Returns the innermost marks over time; between them those without a kind.
std::vector<ProgramSpan> Flatten(std::vector<Mark> marks) {
  std::sort(marks.begin(), marks.end());
  std::vector<ProgramSpan> spans;
  std::set<Mark> open;
  int64_t at = marks.empty() ? 0 : marks.front().begin_ns;
  const auto advance = [&](int64_t to) {
    while (at < to) {
      while (!open.empty() && open.rbegin()->end_ns <= at) open.erase(std::prev(open.end()));
      const int64_t end = open.empty() ? to : std::min(to, open.rbegin()->end_ns);
      std::optional<TraceKind> kind;
      if (!open.empty()) kind = open.rbegin()->kind;
      if (!spans.empty() && spans.back().kind == kind && kind != TraceKind::kWaiting) {
        spans.back().end_ns = end;
      } else {
        spans.push_back({at, end, kind});
      }
      at = end;
    }
  };
  for (const Mark& mark : marks) {
    advance(mark.begin_ns);
    open.insert(mark);
  }
  int64_t last = at;
  for (const Mark& mark : open) last = std::max(last, mark.end_ns);
  advance(last);
  return spans;
}

}  // namespace

ProgramTime::ProgramTime(const std::vector<TraceRecord>& records) {
  std::vector<Mark> marks;
  for (const TraceRecord& record : records) {
    if (record.kind < kFirstMark || record.kind > kLastMark) continue;
    const auto kind = static_cast<TraceKind>(record.kind);
    if (kind == TraceKind::kStep) {
      steps_.push_back({.number = record.step,
                        .begin_ns = record.begin_ns,
                        .end_ns = EndOf(record),
                        .queued_ns = int64_t{record.bytes} * kTraceTickNs});
    } else if (CoversTime(kind) && record.wall_ns > 0) {
      marks.push_back({record.begin_ns, EndOf(record), kind});
    }
  }
  std::stable_sort(steps_.begin(), steps_.end(),
                   [](const auto& a, const auto& b) { return a.end_ns < b.end_ns; });
  spans_ = Flatten(std::move(marks));
}

std::optional<size_t> ProgramTime::SpanBefore(int64_t ns) const {
  const auto after =
      std::lower_bound(spans_.begin(), spans_.end(), ns,
                       [](const ProgramSpan& span, int64_t at) { return span.end_ns < at; });
  if (after == spans_.end() || after->begin_ns >= ns) return std::nullopt;
  return static_cast<size_t>(after - spans_.begin());
}

}  // namespace bdn
