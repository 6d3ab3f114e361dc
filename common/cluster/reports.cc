#include "common/cluster/reports.h"

#include <algorithm>
#include <utility>

#include "common/base/status.h"

namespace bdn {
namespace {

constexpr size_t kMostNameBytes = 64;

bool MayBeInName(char c) { return c > ' ' && c <= '~' && c != '"' && c != '\'' && c != '\\'; }

}  // namespace

absl::Status CheckReportName(std::string_view name) {
  if (name.empty() || name.size() > kMostNameBytes) {
    return InvalidArgument("the name of a report has %d bytes: expected 1 to %d", name.size(),
                           kMostNameBytes);
  }
  const auto wrong = std::find_if_not(name.begin(), name.end(), MayBeInName);
  if (wrong == name.end()) return absl::OkStatus();
  return InvalidArgument(
      "the name of a report has the byte 0x%02x at %d: expected printable ASCII without quotes, "
      "backslashes and spaces, as loss/train",
      static_cast<unsigned char>(*wrong), wrong - name.begin());
}

absl::Status ReportBuffer::Add(const ReportedValue& value) {
  auto place = waiting_.find(value.name);
  if (place == waiting_.end()) {
    BDN_RETURN_IF_ERROR(CheckReportName(value.name));
    if (waiting_.size() >= kMostReportNames) {
      return ResourceExhausted(
          "report '%s': %d names are reported already, which is the most there may be", value.name,
          kMostReportNames);
    }
    place = waiting_.try_emplace(value.name).first;
  }
  if (num_waiting_ >= kMostReports) Thin();
  Series& series = place->second;
  if (series.seen++ % stride_ != 0) {
    // In place of the last point, so that the latest value is always kept.
    series.points.back() = {value.step, value.value};
    return absl::OkStatus();
  }
  series.points.push_back({value.step, value.value});
  ++num_waiting_;
  return absl::OkStatus();
}

void ReportBuffer::Thin() {
  num_waiting_ = 0;
  stride_ *= 2;
  for (auto& [name, series] : waiting_) {
    std::vector<Point>& points = series.points;
    size_t kept = 0;
    // Each pair of points keeps its later one; a single last point stays, too.
    for (size_t i = 1; i < points.size(); i += 2) points[kept++] = points[i];
    if (points.size() % 2 == 1) points[kept++] = points.back();
    points.resize(kept);
    num_waiting_ += kept;
  }
}

std::vector<ReportedValue> ReportBuffer::Take() {
  std::vector<ReportedValue> values;
  values.reserve(num_waiting_);
  for (auto& [name, series] : waiting_) {
    for (const Point& point : std::exchange(series, {}).points) {
      values.push_back({name, point.step, point.value});
    }
  }
  num_waiting_ = 0;
  stride_ = 1;
  return values;
}

void ReportBuffer::GiveBack(const std::vector<ReportedValue>& values) {
  const std::vector<ReportedValue> later = Take();
  // Their names are known, so no value is refused.
  for (const ReportedValue& value : values) (void)Add(value);
  for (const ReportedValue& value : later) (void)Add(value);
}

}  // namespace bdn
