#ifndef BANDONEON_SCHEDULER_SERVICE_H_
#define BANDONEON_SCHEDULER_SERVICE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "scheduler/job.h"
#include "scheduler/job_host.h"

namespace bdn {

// The gRPC service of a job, with the standard health service beside it. One thread takes calls,
// decides by their metadata whether they may be made, and serves heartbeats; another one parses and
// serves all other calls and the streams. A call that waits costs memory only, and an idle service
// uses no processor time. Thread-safe.
class SchedulerService {
 public:
  // The counters of the service.
  struct Counts {
    uint64_t calls_refused = 0;  // of callers without the job's secret
    uint64_t requests_read = 0;  // of callers with it
    // Connections of which no call was admitted: those that ended so, and those that were cut to
    // make room.
    uint64_t connections_without_call = 0;
    uint64_t connections_cut = 0;
  };

  // Serves at `listen` (host:port, port 0 for a free one). `clock` is borrowed; `logged` as for
  // JobHost. InvalidArgument for bad options or a bad address; Unavailable where the address is in
  // use.
  static absl::StatusOr<std::unique_ptr<SchedulerService>> Start(const std::string& listen,
                                                                 JobOptions options,
                                                                 const Clock* clock,
                                                                 JobHost::Logged logged);
  // The same without a log.
  static absl::StatusOr<std::unique_ptr<SchedulerService>> Start(const std::string& listen,
                                                                 JobOptions options,
                                                                 const Clock* clock) {
    return Start(listen, std::move(options), clock, JobHost::Logged());
  }
  // As Close.
  virtual ~SchedulerService() = default;

  virtual int port() const = 0;
  // Sets the health service beside it to NOT_SERVING from now on; everything else goes on.
  virtual void EndHealth() = 0;
  virtual JobHost* host() = 0;
  // Runs `task` on the thread that serves all calls except heartbeats: calls that come wait until
  // it is done.
  virtual void PostWork(std::function<void()> task) = 0;

  // Returns how often a connection had to wait because this process had no descriptor free for it.
  virtual uint64_t accept_failures() const = 0;

  // Waits, at the end of a job, until every node of it was told that it failed, or went on without
  // the node; returns false when `timeout` passed.
  virtual bool AwaitNodesTold(absl::Duration timeout) = 0;

  virtual Counts counts() const = 0;

  // Ends every call, and waits for the threads. Idempotent.
  virtual void Close() = 0;
};

}  // namespace bdn

#endif  // BANDONEON_SCHEDULER_SERVICE_H_
