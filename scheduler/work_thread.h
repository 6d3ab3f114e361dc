#ifndef BANDONEON_SCHEDULER_WORK_THREAD_H_
#define BANDONEON_SCHEDULER_WORK_THREAD_H_

#include <deque>
#include <functional>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "common/base/mutex.h"
#include "common/base/thread.h"

namespace bdn {

// A thread that runs tasks one after the other. Once it is closed and all tasks have run, a task
// runs on the thread that posts it. Thread-safe.
class WorkThread {
 public:
  WorkThread() : thread_(StartThread("bdn-work", [this] { Run(); })) {}
  // As Close.
  ~WorkThread() { Close(); }
  WorkThread(const WorkThread&) = delete;
  WorkThread& operator=(const WorkThread&) = delete;

  void Post(std::function<void()> task);
  // Returns when all posted tasks have run. Idempotent; must not be called on the work thread
  // itself.
  void Close();

 private:
  void Run();

  Mutex mu_;
  CondVar changed_;
  std::deque<std::function<void()>> tasks_ ABSL_GUARDED_BY(mu_);
  bool closing_ ABSL_GUARDED_BY(mu_) = false;
  bool ended_ ABSL_GUARDED_BY(mu_) = false;  // nothing will be taken from the queue any more
  std::thread thread_;
};

}  // namespace bdn

#endif  // BANDONEON_SCHEDULER_WORK_THREAD_H_
