#ifndef BANDONEON_WORKER_PIPELINE_STAGE_QUEUE_H_
#define BANDONEON_WORKER_PIPELINE_STAGE_QUEUE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "common/base/executor.h"
#include "common/base/ids.h"
#include "common/base/mutex.h"

namespace bdn {

// The pipeline's one queue: encodes and decodes run on an executor, most urgent first by (priority,
// step, key). Encodes also wait for a budget of bytes that are encoded but not yet sent; it is
// never held for a reply, or two workers that order keys differently would wait for each other.
// Thread-safe.
class StageQueue {
 public:
  enum class Stage { kEncode, kDecode };
  struct Task {
    Stage stage = Stage::kEncode;
    int priority = 0;  // higher first
    Step step = 0;     // then lower first
    Key key;           // then lower first, rotated by the worker's rank
    size_t bytes = 0;  // of budget; kEncode only
    std::function<void()> run;
  };

  // `executor` is borrowed. One encode may always run, whatever its size.
  StageQueue(Executor* executor, size_t max_bytes_in_flight)
      : executor_(executor), max_bytes_in_flight_(max_bytes_in_flight) {}

  void Push(Task task);
  // Gives `bytes` of an encode's budget back.
  void Release(size_t bytes);

 private:
  void RunOne();

  Executor* const executor_;
  const size_t max_bytes_in_flight_;
  Mutex mu_;
  std::vector<Task> encodes_ ABSL_GUARDED_BY(mu_);  // heaps
  std::vector<Task> decodes_ ABSL_GUARDED_BY(mu_);
  size_t bytes_in_flight_ ABSL_GUARDED_BY(mu_) = 0;
  int turns_without_work_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace bdn

#endif  // BANDONEON_WORKER_PIPELINE_STAGE_QUEUE_H_
