#ifndef BANDONEON_COMMON_CLUSTER_TRACE_UPLOADS_H_
#define BANDONEON_COMMON_CLUSTER_TRACE_UPLOADS_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/cluster/scheduler_calls.h"
#include "common/cluster/trace_dump.h"

namespace bdn {

// The recordings that a node sends because the scheduler asked. A thread makes and sends them; it
// is started by an order and ends when there is none left, so a node that nobody looks at has none.
// Thread-safe.
class TraceUploads {
 public:
  // Makes a recording, or says why there is none. Null: nothing is recorded.
  using Make = std::function<absl::StatusOr<std::string>(const DumpOrder&)>;

  // Borrows `calls` and `clock`.
  TraceUploads(SchedulerCalls* calls, const Clock* clock) : calls_(calls), clock_(clock) {}
  // Ends as Close does.
  ~TraceUploads() { Close(); }
  TraceUploads(const TraceUploads&) = delete;
  TraceUploads& operator=(const TraceUploads&) = delete;

  // Has a recording made and sent, and returns at once. An order that came before is ignored, and
  // one that is not begun yet gives way to it.
  void Start(const DumpOrder& order, Make make);
  // Waits for the thread; no order is taken any more. The calls must have been closed, so that they
  // end. Idempotent.
  void Close();

 private:
  struct Wanted {
    DumpOrder order;
    Make make;
  };

  std::optional<Wanted> TakeNext();
  void Send(const Wanted& wanted);

  SchedulerCalls* const calls_;
  const Clock* const clock_;

  Mutex mu_;
  uint64_t latest_ ABSL_GUARDED_BY(mu_) = 0;  // the number of the order that came last
  std::optional<Wanted> wanted_ ABSL_GUARDED_BY(mu_);
  bool is_running_ ABSL_GUARDED_BY(mu_) = false;
  bool is_closed_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_ ABSL_GUARDED_BY(mu_);
};

}  // namespace bdn

#endif  // BANDONEON_COMMON_CLUSTER_TRACE_UPLOADS_H_
