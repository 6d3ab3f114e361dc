#ifndef BANDONEON_TRACE_EXCHANGE_JOIN_H_
#define BANDONEON_TRACE_EXCHANGE_JOIN_H_

#include <vector>

#include "trace/clock_alignment.h"
#include "trace/job_trace.h"

namespace bdn {

// Returns the exchanges of the records, joined by key, step and worker, with the times of each
// node's own clock. `nodes[i].trace` alone is read.
std::vector<Exchange> JoinExchanges(const std::vector<JobNode>& nodes);

// Returns what a push and its reply say about the clocks of the two nodes; `clock_of[i]` is the
// clock of node i.
std::vector<ClockBound> BoundsOf(const std::vector<Exchange>& exchanges,
                                 const std::vector<uint32_t>& clock_of);

}  // namespace bdn

#endif  // BANDONEON_TRACE_EXCHANGE_JOIN_H_
