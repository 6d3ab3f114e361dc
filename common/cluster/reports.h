#ifndef BANDONEON_COMMON_CLUSTER_REPORTS_H_
#define BANDONEON_COMMON_CLUSTER_REPORTS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "common/base/ids.h"

namespace bdn {

// What a program says of itself under a name: the loss of a step.
struct ReportedValue {
  std::string name;
  Step step = 0;
  double value = 0;  // any; one that is not finite is a gap

  bool operator==(const ReportedValue&) const = default;
};

inline constexpr size_t kMostReportNames = 64;  // of a worker, and of a job
// Of one heartbeat. With names as long as they may be they fit the least max-request-bytes.
inline constexpr size_t kMostReports = 256;

// InvalidArgument unless it is 1 to 64 bytes of printable ASCII without quotes, backslashes and spaces.
absl::Status CheckReportName(std::string_view name);

// What waits at a worker for its next heartbeat: at most kMostReports values. Beyond that every name keeps
// every second of its own, then every fourth, and its latest: what goes out is thinner, not late. Not
// thread-safe.
class ReportBuffer {
 public:
  // Errors: CheckReportName; ResourceExhausted for a name beyond kMostReportNames.
  absl::Status Add(const ReportedValue& value);
  // All that waits, each name's in order; nothing waits then.
  std::vector<ReportedValue> Take();
  bool is_empty() const { return num_waiting_ == 0; }
  // They could not be sent: they wait again, before what was added since.
  void GiveBack(const std::vector<ReportedValue>& values);

 private:
  struct Point {
    Step step;
    double value;
  };

  struct Series {
    std::vector<Point> points;
    uint64_t seen = 0;  // since the last Take
  };

  void Thin();

  uint64_t stride_ = 1;                                 // one of so many stays
  std::map<std::string, Series, std::less<>> waiting_;  // names stay
  size_t num_waiting_ = 0;
};

}  // namespace bdn

#endif  // BANDONEON_COMMON_CLUSTER_REPORTS_H_
