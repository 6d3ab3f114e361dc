#include "scheduler/server_call.h"

#include <google/protobuf/message_lite.h>
#include <grpcpp/impl/codegen/proto_utils.h>

#include <utility>

#include "common/base/status.h"
#include "common/cluster/control_channel.h"
#include "common/cluster/control_messages.h"

namespace bdn {

ServerCall::ServerCall(ServiceCore* core) : core_(core) {
  // The notice of the end must be asked for before the call is requested.
  context_.AsyncNotifyWhenDone(&done_);
  core_->generic_service()->RequestCall(&context_, &stream_, core_->queue(), core_->queue(),
                                        &arrived_);
}

void ServerCall::OnArrival(bool ok) {
  if (!ok) {  // the service is closing: no call came, and so no notice of an end will come
    delete this;
    return;
  }
  if (core_->is_closing()) return Release();
  // The next call is accepted before this one is served, so that it does not wait for that.
  AcceptNext(core_);
  // Nothing of the request is read from a caller that may not ask.
  if (const absl::Status status = core_->Authorize(context_); !status.ok()) return Finish(status);
  method_ = core_->FindMethod(context_.method());
  if (method_ == nullptr) {
    return Finish(Unimplemented("no call is named '%s'", Printable(context_.method())));
  }
  stream_.Read(&request_, &read_);
}

void ServerCall::OnRead(bool ok) {
  if (core_->is_closing()) return Release();
  if (over_) return Finish(Cancelled("the call was given up"));
  if (!ok) return Finish(InvalidArgument("the call %s came without a request", context_.method()));
  if (request_.Length() > method_->most_bytes) {
    return Finish(ResourceExhausted(
        "a request of %s has %d bytes, more than %d: that is %s of the scheduler",
        context_.method(), request_.Length(), method_->most_bytes, method_->setting));
  }
  core_->requests_read.fetch_add(1, std::memory_order_relaxed);
  Serve([this] {
    // The version goes with every answer, errors included, so it is set before the handler can
    // answer.
    ShowControlVersion(&context_);
    handler_ = method_->serve(this);
    handler_->OnRequest(std::exchange(request_, grpc::ByteBuffer()));
  });
}

void ServerCall::Serve(std::function<void()> task) {
  if (method_ == nullptr || method_->is_urgent) return task();
  core_->work()->Post(std::move(task));
}

void ServerCall::OnWritten(bool ok) {
  if (core_->is_closing()) return Release();
  handler_->OnWritten(ok);
}

void ServerCall::OnDone() {
  if (handler_ != nullptr) handler_->OnDone(context_.IsCancelled());
  Release();
}

void ServerCall::Release() {
  if (--pending_ == 0) delete this;
}

void ServerCall::Write(const grpc::ByteBuffer& message) { stream_.Write(message, &written_); }

void ServerCall::Finish(const absl::Status& status) {
  // Called from OnDone, which gives up its own part itself: nothing can be started on the queue.
  if (core_->is_closing()) {
    --pending_;
    return;
  }
  stream_.Finish(ToGrpc(status), &finished_);
}

void ServerCall::FinishWith(const grpc::ByteBuffer& reply) {
  stream_.WriteAndFinish(reply, grpc::WriteOptions(), grpc::Status::OK, &finished_);
}

absl::Status ParseRequest(const grpc::ByteBuffer& buffer, google::protobuf::MessageLite* message) {
  using google::protobuf::MessageLite;
  // Reading consumes a buffer, so it works on a copy, which shares the bytes.
  grpc::ByteBuffer consumed(buffer);
  const grpc::Status status =
      grpc::GenericDeserialize<grpc::ProtoBufferReader, MessageLite>(&consumed, message);
  if (status.ok()) return absl::OkStatus();
  return InvalidArgument("the request is not one of this version");
}

grpc::ByteBuffer ToBuffer(const google::protobuf::MessageLite& message) {
  using google::protobuf::MessageLite;
  grpc::ByteBuffer buffer;
  bool owned = false;
  (void)grpc::GenericSerialize<grpc::ProtoBufferWriter, MessageLite>(message, &buffer, &owned);
  return buffer;
}

}  // namespace bdn
