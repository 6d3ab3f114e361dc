#include "cli/worker_restarts.h"

#include <algorithm>

namespace bdn::cli {

void WorkerRestarts::Started(size_t process, Clock::time_point now) {
  Worker& worker = workers_[process];
  worker.started = now;
  if (++worker.starts > 1) newcomers_.insert(process);
}

std::chrono::seconds WorkerRestarts::Plan(size_t process, Clock::time_point now) {
  Worker& worker = workers_.at(process);
  const bool is_first = worker.last_delay.count() == 0 || now - worker.started >= kLongRun;
  worker.last_delay = is_first ? kFirstDelay : std::min(2 * worker.last_delay, kLongestDelay);
  due_[process] = now + worker.last_delay;
  newcomers_.erase(process);
  return worker.last_delay;
}

std::optional<Clock::time_point> WorkerRestarts::next() const {
  std::optional<Clock::time_point> first;
  for (const auto& [process, due] : due_) {
    if (!first || due < *first) first = due;
  }
  return first;
}

std::vector<size_t> WorkerRestarts::TakeDue(Clock::time_point now) {
  std::vector<size_t> taken;
  std::erase_if(due_, [&](const auto& entry) {
    if (entry.second > now) return false;
    taken.push_back(entry.first);
    return true;
  });
  return taken;
}

std::vector<size_t> WorkerRestarts::TakeAll() { return TakeDue(Clock::time_point::max()); }

int WorkerRestarts::count(size_t process) const {
  const auto found = workers_.find(process);
  return found == workers_.end() ? 0 : std::max(found->second.starts - 1, 0);
}

}  // namespace bdn::cli
