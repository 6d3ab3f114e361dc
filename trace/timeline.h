#ifndef BANDONEON_TRACE_TIMELINE_H_
#define BANDONEON_TRACE_TIMELINE_H_

#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "trace/job_trace.h"
#include "trace/step_report.h"
#include "trace/torch_profile.h"

namespace bdn {

// A row of a timeline.
struct TimelineTrack {
  uint64_t id = 0;       // of the whole timeline, from 1
  uint64_t process = 0;  // from 1
  int64_t thread = 0;    // the number of its thread in the system; 0 where it is none's
  std::string name;
  // Its slices wait for something beside those of tracks of the same name, which belong together.
  bool is_waiting = false;
  bool is_counter = false;
};

// A slice, or an instant where it has no length. Borrows its texts for a call.
struct TimelineSlice {
  int64_t begin_ns = 0;  // real time
  int64_t end_ns = 0;
  std::string_view name;      // the phase or mark
  std::string_view category;  // "exchange", "program", or a profiler's own
  std::string_view subject;   // the tensor, or the text of a mark; may be empty
  uint64_t step = 0;          // 0: none
  uint64_t bytes = 0;
  std::string_view peer;  // the node on the other side; may be empty
  int64_t cpu_ns = 0;
  std::string_view more;  // further arguments, as a JSON object; may be empty
  // What the slice belongs to: all slices of one exchange have its flow.
  enum class Flow : uint8_t { kNone, kBegin, kStep, kEnd };
  struct FlowPoint {
    uint64_t id;
    Flow flow;
  };
  std::span<const FlowPoint> flows;
};

// A writer of one format. Slices of a track come in the order of their begins, and a slice inside
// another one after it. Not thread-safe.
class TimelineSink {
 public:
  virtual ~TimelineSink() = default;
  // Must come before the process's first track; `labels` are shown beside its name.
  virtual void Process(uint64_t process, const std::string& name, int64_t pid,
                       const std::vector<std::string>& labels) = 0;
  virtual void Track(const TimelineTrack& track) = 0;
  virtual void Slices(const TimelineTrack& track, std::span<const TimelineSlice> slices) = 0;
  virtual void Count(const TimelineTrack& track, int64_t at_ns, double value) = 0;
  // Writes what is left. The status is that of all writing.
  virtual absl::Status Finish() = 0;
};

// What is said of a timeline as a whole.
struct TimelineFacts {
  int64_t base_ns = 0;  // real time, from which formats that count from somewhere count
  std::string job;
  std::string about;   // a JSON object: clocks, warnings
  int64_t end_ns = 0;  // where an axis that is drawn ends
  std::string title;   // above a picture
};

// Return writers of Chrome's JSON as Kineto writes it, compressed where `path` ends in .gz, and of
// Perfetto's protobuf. The file appears at its path when it is whole. NotFound where it cannot be
// made. JSON of more than `max_bytes`, before it is compressed, is ResourceExhausted at the end.
absl::StatusOr<std::unique_ptr<TimelineSink>> MakeJsonSink(const std::string& path,
                                                           const TimelineFacts& facts,
                                                           uint64_t max_bytes);
absl::StatusOr<std::unique_ptr<TimelineSink>> MakePerfettoSink(const std::string& path,
                                                               const TimelineFacts& facts);

// Returns a writer of a picture for browsers and documents, with an axis from `facts.base_ns` to
// `facts.end_ns`. ResourceExhausted at the end where it would have more slices than anybody could
// read.
absl::StatusOr<std::unique_ptr<TimelineSink>> MakeSvgSink(const std::string& path,
                                                          const TimelineFacts& facts);

struct TimelineOptions {
  uint64_t max_json_bytes = std::numeric_limits<uint64_t>::max();
  // Writes only what overlaps this step, and above it the step's critical path. Is lent.
  const StepReport* step = nullptr;
};

// Writes a job, and profiles of its ranks, to `path`, whose ending says the format: .json,
// .json.gz, .pftrace or .svg. InvalidArgument for another one; ResourceExhausted where JSON would
// be longer than `max_json_bytes`, or a picture too full.
absl::Status WriteTimeline(const JobTrace& job, std::span<const TorchProfile> profiles,
                           const std::string& path, const TimelineOptions& options = {});

}  // namespace bdn

#endif  // BANDONEON_TRACE_TIMELINE_H_
