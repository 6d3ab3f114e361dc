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
#include "link/urgency.h"

namespace bdn {

// A queue for the tasks of all stages of the pipeline, which an executor runs, the most urgent
// first. Each stage is a lane, which may have a budget for bytes that its
// tasks have made and that were not released yet. A budget is never held until a reply: else two
// workers that order keys differently would wait for each other. Thread-safe.
class StageQueue {
 public:
  struct Lane {
    // The most bytes of tasks that have run and were not released. One task may always run,
    // whatever its size.
    size_t max_bytes = std::numeric_limits<size_t>::max();
  };
  struct Task {
    size_t lane = 0;
    TaskUrgency urgency;
    size_t bytes = 0;  // of the lane's budget, until Release
    std::function<void()> run;
  };

  // `executor` is borrowed. Among equally urgent tasks, one of a later lane runs first: lanes are
  // in the order of the pipeline, and later stages free memory sooner.
  StageQueue(Executor* executor, std::span<const Lane> lanes);

  // Queues a task. REQUIRES: task.lane is one of the lanes.
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
