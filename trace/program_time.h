#ifndef BANDONEON_TRACE_PROGRAM_TIME_H_
#define BANDONEON_TRACE_PROGRAM_TIME_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "common/telemetry/trace_layout.h"
#include "trace/trace_file.h"

namespace bdn {

// A stretch of a program's time with the innermost mark that covers it.
struct ProgramSpan {
  int64_t begin_ns = 0;
  int64_t end_ns = 0;
  // The mark's kind; none where no mark but that of the step covers it.
  std::optional<TraceKind> kind;
};

// What the program that trains did, as its marks say. Immutable, and so thread-safe.
class ProgramTime {
 public:
  struct Step {
    uint64_t number = 0;
    int64_t begin_ns = 0;
    int64_t end_ns = 0;
    int64_t queued_ns = 0;  // ready to run, and did not
  };

  explicit ProgramTime(const std::vector<TraceRecord>& records);

  bool IsEmpty() const { return steps_.empty(); }
  const std::vector<Step>& steps() const { return steps_; }  // by end
  // Spans of the program's waiting for exchanges, by begin, with what lies between them.
  const std::vector<ProgramSpan>& spans() const { return spans_; }
  // Returns the index of the span that ends at `ns` or has it in its midst; none outside of all.
  std::optional<size_t> SpanBefore(int64_t ns) const;

 private:
  std::vector<Step> steps_;
  std::vector<ProgramSpan> spans_;  // without gaps
};

}  // namespace bdn

#endif  // BANDONEON_TRACE_PROGRAM_TIME_H_
