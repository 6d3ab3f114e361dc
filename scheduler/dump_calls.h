#ifndef BANDONEON_SCHEDULER_DUMP_CALLS_H_
#define BANDONEON_SCHEDULER_DUMP_CALLS_H_

#include <grpcpp/alarm.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/base/ids.h"
#include "common/base/mutex.h"
#include "common/cluster/trace_dump.h"
#include "scheduler/dump_state.h"
#include "scheduler/server_call.h"

namespace bdn {

class DumpStream;

// The dumps of a job, of which one runs at a time: the caller's stream, and the calls by which
// nodes bring their recordings. A node's call is answered once its piece has gone to the caller, so
// that nothing queues up here. Used on the thread that serves calls, except where a comment says
// thread-safe.
class DumpCalls {
 public:
  // Answers a node's call.
  using Answer = std::function<void(const absl::Status&)>;

  // Borrows `core`. `step_streams` has the nodes' streams ask OrderFor.
  DumpCalls(ServiceCore* core, std::function<void()> step_streams);

  // Returns the order that a node has yet to hear of, if there is one. Thread-safe.
  std::optional<DumpOrder> OrderFor(NodeId node) const;
  // Takes a piece of a node; `answer` is called once, now or later.
  void OnPiece(NodeId node, TracePiece piece, Answer answer);
  // A node of the dump with that number has sent what is no piece, which its caller answers.
  void OnNonsense(NodeId node, uint64_t number, const absl::Status& why);
  // Some node may be gone, or the job over. Thread-safe.
  void OnJobChanged();
  // Ends the dump that runs with what has come so far, and takes no other.
  void Close();

 private:
  friend class DumpStream;

  // These are called by streams.
  absl::Status Begin(DumpStream* stream, const DumpRequest& request);
  void OnPassedOn(NodeId node);
  void End(DumpStream* stream);

  // Tells the caller what there is to tell.
  void Step();
  void SetOrders();
  void Answered(NodeId node, const absl::Status& status);
  void Arm();
  void OnTick();
  void EndNodesThatAreGone();

  ServiceCore* const core_;
  const std::function<void()> step_streams_;
  uint64_t latest_number_;
  // While a dump runs, its stream and its state.
  DumpStream* stream_ = nullptr;
  std::optional<DumpState> state_;
  std::map<NodeId, Answer> waiting_;      // calls whose piece is held
  std::atomic<bool> is_running_ = false;  // as stream_ != nullptr; publishes no other memory
  bool is_closed_ = false;
  // Comes several times a second while a dump runs.
  std::unique_ptr<grpc::Alarm> alarm_;
  bool is_armed_ = false;
  Tag tick_;

  mutable Mutex mu_;
  std::map<NodeId, DumpOrder> orders_ ABSL_GUARDED_BY(mu_);
};

// The stream by which a person gets a dump. Used on the thread that serves calls.
class DumpStream final : public CallHandler {
 public:
  DumpStream(DumpCalls* all, ServerCall* call) : all_(all), call_(call) {}

  void OnRequest(const grpc::ByteBuffer& request) override;
  void OnWritten(bool ok) override;
  void OnDone(bool cancelled) override;

  const grpc::ServerContext& context() const { return call_->context(); }
  // Returns since when a message has been on its way; nullopt: none is.
  std::optional<absl::Time> writing_since() const { return writing_since_; }
  bool is_ready() const { return !writing_since_ && !is_finishing_ && !is_over_; }
  // Sends a message; of content, `node` sent it. REQUIRES: is_ready().
  void Send(const bandoneon::control::DumpPiece& message, NodeId node, absl::Time now);
  // Answers with `status` once no message is on its way.
  void Finish(const absl::Status& status);

 private:
  void FinishNow();

  DumpCalls* const all_;
  ServerCall* const call_;
  std::optional<absl::Time> writing_since_;
  NodeId passing_ = 0;  // the node whose content is on its way
  bool is_over_ = false;
  bool is_finishing_ = false;
  bool has_end_ = false;  // Finish was called
  absl::Status end_;
};

}  // namespace bdn

#endif  // BANDONEON_SCHEDULER_DUMP_CALLS_H_
