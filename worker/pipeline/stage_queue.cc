#include "worker/pipeline/stage_queue.h"

#include <algorithm>
#include <utility>

namespace bdn {
namespace {

// Orders a max-heap: returns true when a is less urgent than b.
bool LessUrgent(const StageQueue::Task& a, const StageQueue::Task& b) {
  return IsLessUrgent(a.urgency, b.urgency);
}

StageQueue::Task PopTop(std::vector<StageQueue::Task>* heap) {
  std::pop_heap(heap->begin(), heap->end(), LessUrgent);
  StageQueue::Task task = std::move(heap->back());
  heap->pop_back();
  return task;
}

}  // namespace

StageQueue::StageQueue(Executor* executor, std::span<const Lane> lanes) : executor_(executor) {
  for (const Lane& lane : lanes) lanes_.push_back({.max_bytes = lane.max_bytes});
}

void StageQueue::Push(Task task) {
  {
    MutexLock lock(&mu_);
    std::vector<Task>& heap = lanes_[task.lane].waiting;
    heap.push_back(std::move(task));
    std::push_heap(heap.begin(), heap.end(), LessUrgent);
  }
  // Each task posts one turn. A turn runs the task that is most urgent by then, which need not be
  // this one.
  executor_->Post([this] { RunOne(); });
}

void StageQueue::Release(size_t lane, size_t bytes) {
  int turns;
  {
    MutexLock lock(&mu_);
    lanes_[lane].bytes_in_flight -= bytes;
    turns = std::exchange(turns_without_work_, 0);
  }
  for (int i = 0; i < turns; ++i) executor_->Post([this] { RunOne(); });
}

// Returns the lane whose first task is to run next, or null if none may run. A lane with an empty
// budget always may: a task larger than the budget could never run otherwise.
StageQueue::LaneState* StageQueue::MostUrgent() {
  LaneState* best = nullptr;
  for (LaneState& lane : lanes_) {
    if (lane.waiting.empty()) continue;
    const Task& first = lane.waiting.front();
    const bool fits =
        lane.bytes_in_flight == 0 ||
        (first.bytes <= lane.max_bytes && lane.bytes_in_flight <= lane.max_bytes - first.bytes);
    if (!fits) continue;
    if (best == nullptr || !LessUrgent(first, best->waiting.front())) best = &lane;
  }
  return best;
}

void StageQueue::RunOne() {
  Task task;
  {
    MutexLock lock(&mu_);
    LaneState* lane = MostUrgent();
    if (lane == nullptr) {
      ++turns_without_work_;  // Release gives the turn back
      return;
    }
    task = PopTop(&lane->waiting);
    lane->bytes_in_flight += task.bytes;
  }
  task.run();
}

}  // namespace bdn
