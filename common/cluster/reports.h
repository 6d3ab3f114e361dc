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

// A value that a program reports under a name, e.g. the loss of a step.
struct ReportedValue {
  std::string name;
  Step step = 0;
  double value = 0;  // a value that is not finite is shown as a gap

  bool operator==(const ReportedValue&) const = default;
};

inline constexpr size_t kMostReportNames = 64;  // of a worker, and of a job
// The most values in one heartbeat. With names as long as they may be they fit the least
// max-request-bytes.
inline constexpr size_t kMostReports = 256;

// Returns InvalidArgument unless the name is 1 to 64 bytes of printable ASCII without quotes,
// backslashes and spaces.
absl::Status CheckReportName(std::string_view name);

// A buffer of the values that wait at a worker for its next heartbeat, at most kMostReports. When
// there would be more, every name keeps every second of its values, then every fourth, and always
// its latest: reports get thinner, not later. Not thread-safe.
class ReportBuffer {
 public:
  // Adds a value. Errors: as CheckReportName; ResourceExhausted for a name beyond kMostReportNames.
  absl::Status Add(const ReportedValue& value);
  // Returns all waiting values, those of each name in order; afterwards none waits.
  std::vector<ReportedValue> Take();
  bool is_empty() const { return num_waiting_ == 0; }
  // Takes back values that could not be sent: they wait again, before those added since.
  void GiveBack(const std::vector<ReportedValue>& values);

 private:
  struct Point {
    Step step;
    double value;
  };

  struct Series {
    std::vector<Point> points;
    uint64_t seen = 0;  // values added since the last Take
  };

  void Thin();

  uint64_t stride_ = 1;                                 // one of so many values is kept
  std::map<std::string, Series, std::less<>> waiting_;  // names stay when their values are taken
  size_t num_waiting_ = 0;
};

}  // namespace bdn

#endif  // BANDONEON_COMMON_CLUSTER_REPORTS_H_
