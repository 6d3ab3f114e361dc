#ifndef BANDONEON_SCHEDULER_SERVICE_CORE_H_
#define BANDONEON_SCHEDULER_SERVICE_CORE_H_

#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/grpcpp.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "common/base/clock.h"
#include "common/base/log_limit.h"
#include "common/base/mutex.h"
#include "common/cluster/credentials.h"
#include "common/cluster/newcomers.h"
#include "proto/control.pb.h"
#include "scheduler/job_host.h"
#include "scheduler/work_thread.h"

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

class ServerCall;
class CallHandler;

// How calls of one name are served.
struct Method {
  size_t most_bytes = 0;                      // of a request
  const char* setting = "max-request-bytes";  // that says so
  // On the queue's thread, past whatever other calls keep busy with: for what is quick and must not
  // wait. All others are served on the thread of work.
  bool is_urgent = false;
  std::function<std::unique_ptr<CallHandler>(ServerCall*)> serve;
};

// What every call and stream of a service uses. Owned by the service, and there until the last
// operation has come back from the queue.
class ServiceCore {
 public:
  ServiceCore(JobOptions options, const Clock* clock);

  JobHost* host() { return &host_; }
  const Clock* clock() const { return clock_; }
  const Credentials& credentials() const { return credentials_; }
  grpc::AsyncGenericService* generic_service() { return &generic_service_; }
  WorkThread* work() { return &work_; }
  Newcomers* newcomers() { return &newcomers_; }
  const Newcomers& newcomers() const { return newcomers_; }

  // Before the service listens. `name` is gRPC's: "/package.Service/Method".
  void AddMethod(const std::string& name, Method method) { methods_[name] = std::move(method); }
  // Null where there is none.
  const Method* FindMethod(const std::string& name) const;

  // Whether the call shows what the job asks of every caller. Logs refusals, one a second.
  absl::Status Authorize(const grpc::ServerContext& context);
  // The secret of a node that has joined: who calls in its name shows it.
  uint64_t SecretOf(NodeId node);
  // Whether the caller is a node of this job, and not of one that another scheduler ran here.
  absl::Status CheckCaller(const bandoneon::control::Caller& caller) const;
  // AlreadyExists where a Join with that number came before.
  absl::Status TakeNonce(uint64_t nonce);

  // The completion queue. Null until the service listens.
  void set_queue(std::unique_ptr<grpc::ServerCompletionQueue> queue) { queue_ = std::move(queue); }
  grpc::ServerCompletionQueue* queue() const { return queue_.get(); }
  // Runs what comes back from the queue, until it is shut and empty.
  void RunQueue();
  // From then on nothing may be started on the queue. On the queue's thread, or without one; once
  // the host and the thread of work have ended.
  void ShutQueue();
  bool is_closing() const { return is_closing_; }

  // What the service has done: counters that are published by nothing but themselves.
  std::atomic<uint64_t> calls_refused{0};
  std::atomic<uint64_t> requests_read{0};

 private:
  const Clock* const clock_;
  const Credentials credentials_;
  Newcomers newcomers_;
  std::map<std::string, Method> methods_;
  JobHost host_;
  grpc::AsyncGenericService generic_service_;
  std::unique_ptr<grpc::ServerCompletionQueue> queue_;
  bool is_closing_ = false;

  LimitedLog refusal_log_;
  mutable Mutex mu_;
  std::map<NodeId, uint64_t> secrets_ ABSL_GUARDED_BY(mu_);
  std::set<uint64_t> nonces_ ABSL_GUARDED_BY(mu_);
  WorkThread work_;  // goes first: its tasks use all of the above
};

}  // namespace bdn

#endif  // BANDONEON_SCHEDULER_SERVICE_CORE_H_
