#ifndef BANDONEON_SCHEDULER_UNARY_CALL_H_
#define BANDONEON_SCHEDULER_UNARY_CALL_H_

#include <functional>
#include <utility>

#include "absl/status/status.h"
#include "common/base/status.h"
#include "scheduler/server_call.h"

namespace bdn {

// A call with one request and one reply, from its request to its answer. reply() and Finish may be
// called on JobHost's thread, by the callback that answers; all else runs on the thread that serves
// the call.
template <typename Request, typename Reply>
class UnaryCall final : public CallHandler {
 public:
  // Answers, now or later; returns the id of the wait that it started, or 0.
  using Handler = std::function<CallId(UnaryCall*)>;

  UnaryCall(ServiceCore* core, ServerCall* call, Handler handler)
      : core_(core), call_(call), handler_(std::move(handler)) {}

  const Request& request() const { return request_; }
  const grpc::ServerContext& context() const { return call_->context(); }
  Reply* reply() { return &reply_; }
  // Answers. To be called once.
  void Finish(const absl::Status& status) {
    if (status.ok()) {
      call_->FinishWith(ToBuffer(reply_));
    } else {
      call_->Finish(status);
    }
  }
  // For handlers that answer at once.
  CallId FinishNow(const absl::Status& status) {
    Finish(status);
    return 0;
  }
  // For handlers whose answer comes when that wait ends, by Finish. `wait` is 0 where JobHost is
  // closed.
  CallId FinishLater(CallId wait) {
    if (wait == 0) Finish(Cancelled("the scheduler is closing"));
    return wait;
  }

  void OnRequest(const grpc::ByteBuffer& request) override {
    const absl::Status status = ParseRequest(request, &request_);
    if (!status.ok()) return Finish(status);
    call_id_ = handler_(this);
  }
  void OnWritten(bool) override {}
  void OnDone(bool cancelled) override {
    if (cancelled && call_id_ != 0) core_->host()->Cancel(call_id_);
  }

 private:
  ServiceCore* const core_;
  ServerCall* const call_;
  const Handler handler_;
  Request request_;
  Reply reply_;
  CallId call_id_ = 0;
};

}  // namespace bdn

#endif  // BANDONEON_SCHEDULER_UNARY_CALL_H_
