#ifndef BANDONEON_COMMON_CLUSTER_WORKER_NAMES_H_
#define BANDONEON_COMMON_CLUSTER_WORKER_NAMES_H_

#include <span>
#include <string>

#include "common/base/ids.h"

namespace bdn {

// Returns the name by which errors call a worker through which so many processes push, the first of
// them of rank `first_process`: "worker 1"; "host 1 (ranks 2-3)" where its rank is not that of its
// only process.
std::string NameOfWorker(Rank rank, Rank first_process, int processes);
// Returns the name of its processes: "rank 2", "ranks 2-3".
std::string RanksOfWorker(Rank first_process, int processes);
// Returns the same from the numbers of processes of all workers, by rank; an empty list means one
// each.
std::string NameOfWorker(Rank rank, std::span<const int> processes);

}  // namespace bdn

#endif  // BANDONEON_COMMON_CLUSTER_WORKER_NAMES_H_
