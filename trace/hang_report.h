#ifndef BANDONEON_TRACE_HANG_REPORT_H_
#define BANDONEON_TRACE_HANG_REPORT_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "trace/job_trace.h"

namespace bdn {

// What a node was doing when the recordings end. Ages are against the newest time of all nodes.
struct NodeState {
  uint32_t node = 0;  // its index in JobTrace::nodes
  std::string last;   // "decode of 'fc.weight' step 811"; empty where it recorded nothing
  double last_age_s = 0;
  std::string last_mark;  // likewise of its program
  double last_mark_age_s = 0;
  double sign_age_s = 0;      // of the last sign of life: a record or a reading of its clock
  bool has_ended = false;     // it closed its recording in order
  bool is_silent = false;     // it did not, and gave no sign while others did
  size_t open_exchanges = 0;  // of a worker: pushed, and not answered
  // The Python stack of its main thread or, as the end of a sentence about its process, why there
  // is none; both are empty where nobody has asked. ExplainHang does not: the reader of recordings
  // sends nothing to processes.
  std::string stack;
  std::string why_no_stack;
};

// A round that some workers have pushed and others have not.
struct OpenRound {
  uint64_t key = 0;
  uint64_t step = 0;
  std::vector<NodeId> pushed;
  std::vector<NodeId> missing;
  int64_t since_ns = 0;  // the first push
};

struct HangReport {
  std::string sentence;  // whom all wait for, and what it did last
  std::vector<NodeState> nodes;
  std::vector<OpenRound> rounds;  // the oldest first
};

// Says whom a job waits for where its recordings end.
HangReport ExplainHang(const JobTrace& job);

// Returns the nodes, as indices of the report's, whose programs' stack may say why the job hangs:
// the workers for which an open round waits or, where no worker is missing, all that have not
// ended.
std::vector<size_t> NodesToAsk(const JobTrace& job, const HangReport& report);

std::string HangText(const JobTrace& job, const HangReport& report);
std::string HangJson(const JobTrace& job, const HangReport& report);

}  // namespace bdn

#endif  // BANDONEON_TRACE_HANG_REPORT_H_
