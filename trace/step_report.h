#ifndef BANDONEON_TRACE_STEP_REPORT_H_
#define BANDONEON_TRACE_STEP_REPORT_H_

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "trace/job_trace.h"
#include "trace/link_use.h"

namespace bdn {

// A stretch of a step's critical path: what the step waited for there, and at which node.
struct PathPiece {
  uint32_t node = 0;  // its index in JobTrace::nodes
  std::string kind;   // "backward", "send"; "hold" only where the last worker is unknown
  int64_t begin_ns = 0;
  int64_t end_ns = 0;
};

// The time for which a worker's program waited for exchanges in one step, by the part of the
// exchange that it waited for.
struct ExposedTime {
  std::array<int64_t, kNumExchangeParts> by_part = {};
  // Of the part hold, by the worker whose push closed the round; -1: unknown.
  std::map<int32_t, int64_t> hold_by_worker;
  int64_t without_exchange_ns = 0;  // no exchange was open

  int64_t Total() const;  // without the last
};

struct StepReport {
  uint64_t step = 0;
  int64_t begin_ns = 0;  // the end of the step before, at the worker that ended it last
  int64_t end_ns = 0;
  std::vector<PathPiece> path;              // in order of time
  std::map<uint32_t, ExposedTime> exposed;  // by the index of the node of the program
  std::string reason;  // why it took longer than others; empty where it did not

  int64_t Duration() const { return end_ns - begin_ns; }
};

// Where the time of a job's steps went.
struct JobReport {
  // Without marks of a program the steps are those of keys, and nothing says what the program
  // waited for.
  bool has_marks = false;
  std::vector<StepReport> steps;  // by number
  int64_t median_ns = 0;          // of a step
  // Medians and means over steps of the critical path's time, by kind. Means add up to the mean of
  // a step.
  struct KindTime {
    std::string kind;
    int64_t median_ns = 0;
    double mean_ns = 0;
    std::map<uint32_t, double> mean_by_node;
  };
  std::vector<KindTime> kinds;  // the longest mean first
  std::vector<LinkUse> links;   // of the whole recordings, by node and then peer
};

// Explains all steps of a job.
JobReport ExplainJob(const JobTrace& job);
// Returns what JobReport::kinds is, over those steps of a report whose numbers are given.
std::vector<JobReport::KindTime> KindsOfSteps(const JobReport& report,
                                              const std::set<uint64_t>& numbers);

// Return the report for people, and as a JSON object; of `step` alone, if it is given, which must
// be one of the report's.
std::string ReportText(const JobTrace& job, const JobReport& report, std::optional<uint64_t> step);
std::string ReportJson(const JobTrace& job, const JobReport& report, std::optional<uint64_t> step);

}  // namespace bdn

#endif  // BANDONEON_TRACE_STEP_REPORT_H_
