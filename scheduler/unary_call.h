#ifndef BANDONEON_SCHEDULER_UNARY_CALL_H_
#define BANDONEON_SCHEDULER_UNARY_CALL_H_

#include <grpcpp/grpcpp.h>

#include <functional>
#include <utility>

#include "absl/status/status.h"
#include "common/base/status.h"
#include "common/cluster/control_messages.h"
#include "scheduler/service_core.h"

namespace bdn {

// One unary call, from its arrival to the end of its answer. Deletes itself once both its operation
// and the notice of its end have come back. Owned by the queue's thread; Finish may come from the
// host's.
template <typename Request, typename Reply>
class UnaryCall final {
 public:
  using AsyncService = ServiceCore::AsyncService;
  using Responder = grpc::ServerAsyncResponseWriter<Reply>;
  using Accept = void (AsyncService::*)(grpc::ServerContext*, Request*, Responder*,
                                        grpc::CompletionQueue*, grpc::ServerCompletionQueue*,
                                        void*);
  // Answers, now or later; returns the id of the wait that it started, or 0.
  using Handler = std::function<CallId(UnaryCall*)>;

  static void AcceptNext(ServiceCore* core, Accept accept, const Handler& handler) {
    new UnaryCall(core, accept, handler);
  }

  const Request& request() const { return request_; }
  Reply* reply() { return &reply_; }
  // Once.
  void Finish(const absl::Status& status) {
    if (status.ok()) {
      responder_.Finish(reply_, grpc::Status::OK, &operation_);
    } else {
      responder_.FinishWithError(ToGrpc(status), &operation_);
    }
  }
  // For handlers: the answer is this.
  CallId FinishNow(const absl::Status& status) {
    Finish(status);
    return 0;
  }
  // For handlers: the answer comes when that wait ends, by Finish. 0 is of a host that is closed.
  CallId FinishLater(CallId wait) {
    if (wait == 0) Finish(Cancelled("the scheduler is closing"));
    return wait;
  }

 private:
  UnaryCall(ServiceCore* core, Accept accept, Handler handler)
      : core_(core), accept_(accept), handler_(std::move(handler)) {
    context_.AsyncNotifyWhenDone(&done_);
    (core_->async_service()->*accept_)(&context_, &request_, &responder_, core_->queue(),
                                       core_->queue(), &operation_);
  }

  void OnOperation(bool ok) {
    if (arrived_) return Release();  // the answer is out
    arrived_ = true;
    if (!ok) {  // the service is closing: no call came, and no notice of its end will
      delete this;
      return;
    }
    if (core_->is_closing()) return Release();
    AcceptNext(core_, accept_, handler_);
    const absl::Status status = core_->Authorize(context_);
    if (!status.ok()) return Finish(status);
    call_id_ = handler_(this);
    if (over_) CancelWait();
  }

  void OnDone() {
    over_ = true;
    if (context_.IsCancelled()) CancelWait();
    Release();
  }

  void CancelWait() {
    if (call_id_ != 0) core_->host()->Cancel(call_id_);
  }

  void Release() {
    if (--pending_ == 0) delete this;
  }

  ServiceCore* const core_;
  const Accept accept_;
  const Handler handler_;
  grpc::ServerContext context_;
  Request request_;
  Reply reply_;
  Responder responder_{&context_};
  Tag operation_{[this](bool ok) { OnOperation(ok); }};
  Tag done_{[this](bool) { OnDone(); }};
  bool arrived_ = false;
  bool over_ = false;  // the notice of the end has come
  int pending_ = 2;
  CallId call_id_ = 0;
};

}  // namespace bdn

#endif  // BANDONEON_SCHEDULER_UNARY_CALL_H_
