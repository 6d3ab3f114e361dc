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

// What a call does once its request is there. Owned by its call; on one thread at a time, but for
// what its own class says.
class CallHandler {
 public:
  virtual ~CallHandler() = default;
  // Once, first. Sooner or later it leads to Finish or FinishWith of the call.
  virtual void OnRequest(const grpc::ByteBuffer& request) = 0;
  // What Write began has ended; not ok: the connection is broken.
  virtual void OnWritten(bool ok) = 0;
  // The call is over: answered, or given up by the caller. Once, if OnRequest was called, maybe
  // before the answer.
  virtual void OnDone(bool cancelled) = 0;
};

// One call from its arrival to the end of its answer. By its name and metadata alone it is decided
// whether it may be made; only then is its request read, and parsed by its handler. Deletes itself
// once its last operation and the notice of its end have come back.
class ServerCall final {
 public:
  // Waits for the next call, and so on, until the queue is shut.
  static void AcceptNext(ServiceCore* core) { new ServerCall(core); }

  const grpc::ServerContext& context() const { return context_; }

  // Answers, once; from any thread that serves this call or from the host's.
  void Finish(const absl::Status& status);
  void FinishWith(const grpc::ByteBuffer& reply);
  // One at a time.
  void Write(const grpc::ByteBuffer& message);

 private:
  explicit ServerCall(ServiceCore* core);

  // On the queue's thread.
  void OnArrival(bool ok);
  void OnRead(bool ok);
  // On the thread that serves this call, which may be the queue's.
  void Serve(std::function<void()> task);
  void OnWritten(bool ok);
  void OnDone();
  void Release();

  ServiceCore* const core_;
  const Method* method_ = nullptr;  // null until the call may be made
  grpc::GenericServerContext context_;
  grpc::GenericServerAsyncReaderWriter stream_{&context_};
  grpc::ByteBuffer request_;
  std::unique_ptr<CallHandler> handler_;  // null until the request is there
  Tag arrived_{[this](bool ok) { OnArrival(ok); }};
  Tag read_{[this](bool ok) { OnRead(ok); }};
  Tag written_{[this](bool ok) { Serve([this, ok] { OnWritten(ok); }); }};
  Tag finished_{[this](bool) { Serve([this] { Release(); }); }};
  Tag done_{[this](bool) {
    over_ = true;
    Serve([this] { OnDone(); });
  }};
  bool over_ = false;  // the notice of the end has come; of the queue's thread
  int pending_ = 2;    // the answer, and the notice of the end
};

// From and to the bytes that a call carries. InvalidArgument where they are no such message.
absl::Status ParseRequest(const grpc::ByteBuffer& buffer, google::protobuf::MessageLite* message);
grpc::ByteBuffer ToBuffer(const google::protobuf::MessageLite& message);
// Of what is serialised already: the same bytes, not copied.
inline const grpc::ByteBuffer& ToBuffer(const grpc::ByteBuffer& serialised) { return serialised; }

}  // namespace bdn

#endif  // BANDONEON_SCHEDULER_SERVER_CALL_H_
