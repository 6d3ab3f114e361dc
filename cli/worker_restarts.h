#ifndef BANDONEON_CLI_WORKER_RESTARTS_H_
#define BANDONEON_CLI_WORKER_RESTARTS_H_

#include <chrono>
#include <cstddef>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "cli/process_group.h"

namespace bdn::cli {

// The times at which lost workers of a job are started again, and the workers among those that the
// job has not taken in yet. Workers go by their numbers among the processes. Not thread-safe.
class WorkerRestarts {
 public:
  // The delay before a restart. It doubles from one restart of a process to its next, up to the
  // longest, and begins anew once the process has run for so long.
  static constexpr std::chrono::seconds kFirstDelay{1};
  static constexpr std::chrono::seconds kLongestDelay{30};
  static constexpr std::chrono::seconds kLongRun{60};

  // Notes that a worker has started, for the first time or again.
  void Started(size_t process, Clock::time_point now);
  // Plans the restart of a worker that has ended now, and returns the delay before it. REQUIRES: it
  // had started.
  std::chrono::seconds Plan(size_t process, Clock::time_point now);
  // Returns when the next restart is due; nothing where none is planned.
  std::optional<Clock::time_point> next() const;
  // Returns the workers that are due, which are planned no more.
  std::vector<size_t> TakeDue(Clock::time_point now);
  // Returns all planned workers, which are planned no more.
  std::vector<size_t> TakeAll();

  // Returns how often a worker was started again.
  int count(size_t process) const;
  // Returns whether a worker was started again and was not taken in by the job since.
  bool IsNewcomer(size_t process) const { return newcomers_.contains(process); }
  const std::set<size_t>& newcomers() const { return newcomers_; }
  // Notes that the job has taken a worker in.
  void TakenIn(size_t process) { newcomers_.erase(process); }

 private:
  struct Worker {
    Clock::time_point started;
    std::chrono::seconds last_delay{0};  // 0: the next one is the first
    int starts = 0;
  };

  std::map<size_t, Worker> workers_;
  std::map<size_t, Clock::time_point> due_;
  std::set<size_t> newcomers_;
};

}  // namespace bdn::cli

#endif  // BANDONEON_CLI_WORKER_RESTARTS_H_
