#ifndef BANDONEON_SCHEDULER_WORK_THREAD_H_
#define BANDONEON_SCHEDULER_WORK_THREAD_H_

#include <deque>
#include <functional>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "common/base/mutex.h"
#include "common/base/thread.h"

namespace bdn {

// Runs tasks one after the other, on a thread of its own; once it is closed and all have run, on
// the thread that posts. Thread-safe.
class WorkThread {
 public:
  WorkThread() : thread_(StartThread("bdn-work", [this] { Run(); })) {}
  // As Close.
  ~WorkThread() { Close(); }
  WorkThread(const WorkThread&) = delete;
  WorkThread& operator=(const WorkThread&) = delete;

  void Post(std::function<void()> task);
  // Returns when what was posted has run. Idempotent; not on the thread itself.
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
