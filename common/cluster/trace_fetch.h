#ifndef BANDONEON_COMMON_CLUSTER_TRACE_FETCH_H_
#define BANDONEON_COMMON_CLUSTER_TRACE_FETCH_H_

#include <cstddef>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "common/cluster/credentials.h"
#include "common/cluster/membership.h"
#include "common/cluster/trace_dump.h"

namespace bdn {

// One node of a dump.
struct DumpedNode {
  std::string job;
  NodeInfo node;          // its number, role, rank and host
  size_t asked = 0;       // the nodes of the dump
  size_t left_out = 0;    // so many more were asked for
  std::string recording;  // what has come of it, of which nothing is checked
  absl::Status end;       // OK: the recording is whole; else why it is not
};

// Asks the scheduler at `address` for the latest records of its job's nodes. Calls `take` with each
// node once it has sent all, failed, or been silent for the request's patience. Returns OK when all
// nodes were taken. Errors are those of FetchStatusJson (status_fetch.h), and FailedPrecondition
// where the job does not run, or another dump of it does; NotFound where it has none of the nodes.
absl::Status FetchTraces(const std::string& address, const Credentials& credentials,
                         const DumpRequest& request,
                         const std::function<void(DumpedNode node)>& take);

}  // namespace bdn

#endif  // BANDONEON_COMMON_CLUSTER_TRACE_FETCH_H_
