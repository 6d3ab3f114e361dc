#ifndef BANDONEON_SCHEDULER_SERVER_CALL_H_
#define BANDONEON_SCHEDULER_SERVER_CALL_H_

#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/grpcpp.h>

#include <functional>
#include <memory>
#include <string_view>

#include "absl/status/status.h"
#include "scheduler/service_core.h"

namespace bdn {

// The handler of a call once its request has come. Owned by its call; called on one thread at a
// time, except where its own class says otherwise.
class CallHandler {
 public:
  virtual ~CallHandler() = default;
  // Handles the request. Called once, first. Sooner or later it leads to Finish or FinishWith of
  // the call.
  virtual void OnRequest(const grpc::ByteBuffer& request) = 0;
  // The write that Write began has ended; not ok: the connection is broken.
  virtual void OnWritten(bool ok) = 0;
  // The call is over: answered, or given up by the caller. Called once, if OnRequest was called,
  // maybe before the answer.
  virtual void OnDone(bool cancelled) = 0;
};

// One call from its arrival to the end of its answer. Its name and metadata alone decide whether it
// may be made; only then is its request read, and parsed by its handler. Deletes itself once its
// last operation and the notice of its end have come back. The comments of its members say on which
// threads these run.
class ServerCall final {
 public:
  // Waits for the next call, and then for the one after it, until the queue is shut.
  static void AcceptNext(ServiceCore* core) { new ServerCall(core); }

  const grpc::ServerContext& context() const { return context_; }

  // Answers. To be called once, from any thread that serves this call, or from JobHost's.
  void Finish(const absl::Status& status);
  void FinishWith(const grpc::ByteBuffer& reply);
  // Sends a message. One at a time: the next after OnWritten.
  void Write(const grpc::ByteBuffer& message);

 private:
  explicit ServerCall(ServiceCore* core);

  // These run on the queue's thread.
  void OnArrival(bool ok);
  void OnRead(bool ok);
  // These run on the thread that serves this call, which may be the queue's.
  void Serve(std::function<void()> task);
  void OnWritten(bool ok);
  void OnDone();
  // Gives up one of the two reasons to exist; deletes the call with the last one.
  void Release();

  ServiceCore* const core_;
  const Method* method_ = nullptr;  // null until the call may be made
  grpc::GenericServerContext context_;
  grpc::GenericServerAsyncReaderWriter stream_{&context_};
  grpc::ByteBuffer request_;
  std::unique_ptr<CallHandler> handler_;  // null until the request has come
  Tag arrived_{[this](bool ok) { OnArrival(ok); }};
  Tag read_{[this](bool ok) { OnRead(ok); }};
  Tag written_{[this](bool ok) { Serve([this, ok] { OnWritten(ok); }); }};
  Tag finished_{[this](bool) { Serve([this] { Release(); }); }};
  Tag done_{[this](bool) {
    over_ = true;
    Serve([this] { OnDone(); });
  }};
  bool over_ = false;  // the notice of the end has come; used on the queue's thread only
  int pending_ = 2;    // counts the answer and the notice of the end, which are still to come
};

// Convert to and from the bytes that a call carries. InvalidArgument where they are no such
// message.
absl::Status ParseRequest(const grpc::ByteBuffer& buffer, google::protobuf::MessageLite* message);
grpc::ByteBuffer ToBuffer(const google::protobuf::MessageLite& message);
// Returns bytes that are serialised already, without a copy.
inline const grpc::ByteBuffer& ToBuffer(const grpc::ByteBuffer& serialised) { return serialised; }

}  // namespace bdn

#endif  // BANDONEON_SCHEDULER_SERVER_CALL_H_
