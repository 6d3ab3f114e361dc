#include "scheduler/work_thread.h"

#include <utility>

namespace bdn {

void WorkThread::Post(std::function<void()> task) {
  {
    MutexLock lock(&mu_);
    if (!ended_) {
      tasks_.push_back(std::move(task));
      changed_.SignalAll();
      return;
    }
  }
  task();
}

void WorkThread::Run() {
  while (true) {
    std::function<void()> task;
    {
      MutexLock lock(&mu_);
      while (tasks_.empty() && !closing_) changed_.Wait(&mu_);
      // Set under the lock with the queue empty: a task posted later runs on its poster's thread
      // and is not lost.
      if (tasks_.empty()) {
        ended_ = true;
        return;
      }
      task = std::move(tasks_.front());
      tasks_.pop_front();
    }
    task();
  }
}

void WorkThread::Close() {
  {
    MutexLock lock(&mu_);
    closing_ = true;
    changed_.SignalAll();
  }
  if (thread_.joinable()) thread_.join();
}

}  // namespace bdn
