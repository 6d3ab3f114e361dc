#include "common/cluster/worker_names.h"

#include <numeric>

#include "absl/strings/str_format.h"

namespace bdn {

std::string RanksOfWorker(Rank first_process, int processes) {
  if (processes == 1) return absl::StrFormat("rank %d", first_process);
  return absl::StrFormat("ranks %d-%d", first_process, first_process + processes - 1);
}

std::string NameOfWorker(Rank rank, Rank first_process, int processes) {
  if (processes == 1 && first_process == rank) return absl::StrFormat("worker %d", rank);
  return absl::StrFormat("host %d (%s)", rank, RanksOfWorker(first_process, processes));
}

std::string NameOfWorker(Rank rank, std::span<const int> processes) {
  if (rank < 0 || static_cast<size_t>(rank) >= processes.size()) return NameOfWorker(rank, rank, 1);
  const auto before = processes.first(static_cast<size_t>(rank));
  return NameOfWorker(rank, std::accumulate(before.begin(), before.end(), 0),
                      processes[static_cast<size_t>(rank)]);
}

}  // namespace bdn
