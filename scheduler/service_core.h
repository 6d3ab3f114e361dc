#ifndef BANDONEON_SCHEDULER_SERVICE_CORE_H_
#define BANDONEON_SCHEDULER_SERVICE_CORE_H_

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "common/base/clock.h"
#include "common/cluster/credentials.h"
#include "proto/control.grpc.pb.h"
#include "scheduler/job_host.h"

namespace bdn {

// What the completion queue hands back: one operation of a call that has ended.
class Tag {
 public:
  explicit Tag(std::function<void(bool ok)> run) : run_(std::move(run)) {}
  Tag(const Tag&) = delete;
  Tag& operator=(const Tag&) = delete;
  void Run(bool ok) { run_(ok); }

 private:
  const std::function<void(bool ok)> run_;
};

// What every call and stream of a service uses. Owned by the service, and there until the last
// operation has come back from the queue.
class ServiceCore {
 public:
  using AsyncService = bandoneon::control::Scheduler::AsyncService;

  ServiceCore(JobOptions options, const Clock* clock);

  JobHost* host() { return &host_; }
  const Clock* clock() const { return clock_; }
  const Credentials& credentials() const { return credentials_; }
  uint64_t incarnation() const { return incarnation_; }
  AsyncService* async_service() { return &async_service_; }

  // Whether the call shows the job's token.
  absl::Status Authorize(const grpc::ServerContext& context) const;
  // Whether the caller is a node of this job, and not of one that another scheduler ran here.
  absl::Status CheckCaller(const bandoneon::control::Caller& caller) const;

  // The completion queue. Null until the service listens.
  void set_queue(std::unique_ptr<grpc::ServerCompletionQueue> queue) { queue_ = std::move(queue); }
  grpc::ServerCompletionQueue* queue() const { return queue_.get(); }
  // Runs what comes back from the queue, until it is shut and empty.
  void RunQueue();
  // From then on nothing may be started on the queue. On the queue's thread, or without one.
  void ShutQueue();
  // On the queue's thread only.
  bool is_closing() const { return is_closing_; }

 private:
  const Clock* const clock_;
  const Credentials credentials_;
  const uint64_t incarnation_;  // random: which of the schedulers at this address this one is
  JobHost host_;
  AsyncService async_service_;
  std::unique_ptr<grpc::ServerCompletionQueue> queue_;
  bool is_closing_ = false;
};

}  // namespace bdn

#endif  // BANDONEON_SCHEDULER_SERVICE_CORE_H_
