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

// A completion that the queue hands back: one operation of a call that has ended.
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

// The way in which calls of one name are served.
struct Method {
  size_t most_bytes = 0;                      // most bytes of a request
  const char* setting = "max-request-bytes";  // the setting that decides most_bytes
  // Serves on the queue's thread, past the work that keeps other calls busy: for calls that are
  // quick and must not wait. All others are served on the work thread.
  bool is_urgent = false;
  std::function<std::unique_ptr<CallHandler>(ServerCall*)> serve;
};

// The objects that all calls and streams of a service use. Owned by the service, and there until
// the last operation has come back from the queue. Thread-safe once the service listens, except
// where a comment names a thread.
class ServiceCore {
 public:
  ServiceCore(JobOptions options, const Clock* clock, JobHost::Logged logged);

  JobHost* host() { return &host_; }
  const Clock* clock() const { return clock_; }
  const Credentials& credentials() const { return credentials_; }
  grpc::AsyncGenericService* generic_service() { return &generic_service_; }
  WorkThread* work() { return &work_; }
  Newcomers* newcomers() { return &newcomers_; }
  const Newcomers& newcomers() const { return newcomers_; }

  // Adds a method, before the service listens. `name` is gRPC's: "/package.Service/Method".
  void AddMethod(const std::string& name, Method method) { methods_[name] = std::move(method); }
  // Returns null where there is no such method.
  const Method* FindMethod(const std::string& name) const;

  // Checks whether the call shows the proofs that the job asks of every caller. Logs refusals, one
  // a second.
  absl::Status Authorize(const grpc::ServerContext& context);
  // Checks whether the caller is a node of this job, and not of one that another scheduler ran
  // here.
  absl::Status CheckCaller(const bandoneon::control::Caller& caller) const;
  // Takes the nonce of a Join. AlreadyExists where a Join with that number came before;
  // ResourceExhausted where too many have come.
  absl::Status TakeNonce(uint64_t nonce);

  // The completion queue. Null until the service listens.
  void set_queue(std::unique_ptr<grpc::ServerCompletionQueue> queue) { queue_ = std::move(queue); }
  grpc::ServerCompletionQueue* queue() const { return queue_.get(); }
  // Runs the completions of the queue, until it is shut and empty.
  void RunQueue();
  // Shuts the queue: from then on no operation may be started on it. To be called on the queue's
  // thread, or without one, once JobHost and the work thread have ended.
  void ShutQueue();
  bool is_closing() const { return is_closing_; }

  // Counters of what the service has done; they publish no other memory.
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
  std::set<uint64_t> nonces_ ABSL_GUARDED_BY(mu_);
  WorkThread work_;  // destroyed first: its tasks use all of the above
};

}  // namespace bdn

#endif  // BANDONEON_SCHEDULER_SERVICE_CORE_H_
