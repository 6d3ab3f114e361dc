#include "worker/pipeline/stage_queue.h"

#include <algorithm>
#include <tuple>
#include <utility>

namespace bdn {
namespace {

// Order of a max-heap: true when a is less urgent than b.
bool LessUrgent(const StageQueue::Task& a, const StageQueue::Task& b) {
  return std::tie(b.priority, a.step, a.key) > std::tie(a.priority, b.step, b.key);
}

StageQueue::Task PopTop(std::vector<StageQueue::Task>* heap) {
  std::pop_heap(heap->begin(), heap->end(), LessUrgent);
  StageQueue::Task task = std::move(heap->back());
  heap->pop_back();
  return task;
}

}  // namespace

void StageQueue::Push(Task task) {
  {
    MutexLock lock(&mu_);
    std::vector<Task>& heap = task.stage == Stage::kEncode ? encodes_ : decodes_;
    heap.push_back(std::move(task));
    std::push_heap(heap.begin(), heap.end(), LessUrgent);
  }
  executor_->Post([this] { RunOne(); });
}

void StageQueue::Release(size_t bytes) {
  int turns;
  {
    MutexLock lock(&mu_);
    bytes_in_flight_ -= bytes;
    turns = std::exchange(turns_without_work_, 0);
  }
  for (int i = 0; i < turns; ++i) executor_->Post([this] { RunOne(); });
}

void StageQueue::RunOne() {
  Task task;
  {
    MutexLock lock(&mu_);
    const bool may_encode =
        !encodes_.empty() && (bytes_in_flight_ == 0 ||
                              bytes_in_flight_ + encodes_.front().bytes <= max_bytes_in_flight_);
    const bool encode_first =
        may_encode && (decodes_.empty() || LessUrgent(decodes_.front(), encodes_.front()));
    if (encode_first) {
      task = PopTop(&encodes_);
      bytes_in_flight_ += task.bytes;
    } else if (!decodes_.empty()) {
      task = PopTop(&decodes_);
    } else {
      ++turns_without_work_;  // Release gives the turn back
      return;
    }
  }
  task.run();
}

}  // namespace bdn
