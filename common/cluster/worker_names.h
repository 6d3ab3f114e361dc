#ifndef BANDONEON_COMMON_CLUSTER_WORKER_NAMES_H_
#define BANDONEON_COMMON_CLUSTER_WORKER_NAMES_H_

#include <span>
#include <string>

#include "common/base/ids.h"

namespace bdn {

// A worker that so many processes push through, the first of rank `first_process`, as errors call it:
// "worker 1"; "host 1 (ranks 2-3)" where its rank is not that of its only process.
std::string NameOfWorker(Rank rank, Rank first_process, int processes);
// Its processes alone: "rank 2", "ranks 2-3".
std::string RanksOfWorker(Rank first_process, int processes);
// Of all workers' processes, by their ranks; empty: one each.
std::string NameOfWorker(Rank rank, std::span<const int> processes);

}  // namespace bdn

#endif  // BANDONEON_COMMON_CLUSTER_WORKER_NAMES_H_
