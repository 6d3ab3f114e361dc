#ifndef BANDONEON_WORKER_PIPELINE_STAGE_QUEUE_H_
#define BANDONEON_WORKER_PIPELINE_STAGE_QUEUE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <vector>

#include "common/base/executor.h"
#include "common/base/ids.h"
#include "common/base/mutex.h"

namespace bdn {

// The pipeline's one queue: the tasks of all its stages run on an executor, most urgent first by
// (priority, step, key). Each stage is a lane, which may have a budget of bytes that its tasks have
// made and nobody has taken over yet. A budget is never held for a reply, or two workers that order
// keys differently would wait for each other. Thread-safe.
class StageQueue {
 public:
  struct Lane {
    // Most bytes of tasks that have run and were not released. One may always run, whatever its
    // size.
    size_t max_bytes = std::numeric_limits<size_t>::max();
  };
  struct Task {
    size_t lane = 0;
    int32_t priority = 0;  // higher first
    Step step = 0;         // then lower first
    Key key;               // then lower first, rotated by the worker's rank
    size_t bytes = 0;      // of the lane's budget, until Release
    std::function<void()> run;
  };

  // `executor` is borrowed. Of tasks that are equally urgent, one of a later lane goes first: lanes
  // are in the order of the way, and what is further on frees memory sooner.
  StageQueue(Executor* executor, std::span<const Lane> lanes);

  // REQUIRES: task.lane is one of the lanes.
  void Push(Task task);
  // Gives `bytes` of a lane's budget back.
  void Release(size_t lane, size_t bytes);

 private:
  struct LaneState {
    size_t max_bytes;
    size_t bytes_in_flight = 0;
    std::vector<Task> waiting;  // a heap
  };

  void RunOne();
  LaneState* MostUrgent() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  Executor* const executor_;
  Mutex mu_;
  std::vector<LaneState> lanes_ ABSL_GUARDED_BY(mu_);
  int turns_without_work_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace bdn

#endif  // BANDONEON_WORKER_PIPELINE_STAGE_QUEUE_H_
