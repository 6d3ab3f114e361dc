#ifndef BANDONEON_WORKER_CLIENT_H_
#define BANDONEON_WORKER_CLIENT_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/bytes.h"
#include "common/base/dtype.h"
#include "common/base/ids.h"
#include "common/base/memory_domain.h"
#include "common/base/status.h"
#include "common/cluster/catalogue.h"
#include "common/cluster/reports.h"
#include "compressors/codec.h"
#include "worker/state_call.h"

namespace bdn {

class CodecDevice;

// One push and pull in flight, as its caller knows it. 0 is none.
using TicketId = uint64_t;

struct PushResult {
  Step step = 0;
  bool absent = false;     // nobody had a gradient; the data is unchanged
  bool nonfinite = false;  // somebody's was not finite; the data is NaN
};

// One of several gradients that are pushed as one.
struct PushSource {
  ConstView data;      // of the tensor's declared type and size; only read. Null: in place of it
  float scale = 1.0f;  // weight / loss scale
  const Codec* codec = nullptr;  // worker/pipeline/chunked_payload.h, of all elements
  ByteSpan payload;
};
using PushSources = std::vector<PushSource>;

// One tensor's exchange, as its caller asks for it. The data is read, then overwritten.
struct PushRequest {
  uint32_t tensor = 0;  // from Declare
  // Of 0 elements: it is of the tensor's declared type and size (of a sum: its type, see
  // `sources`). Null with `absent` when the result is not wanted: it is not sent here, and `absent`
  // of the PushResult is false then, unless nobody had a gradient of anything that shares its
  // frame.
  MutableView data;
  bool absent = false;
  // Higher goes first, of what waits to be encoded, sent, summed, answered or decoded: a push, and
  // at its server the reply to all workers, which is as urgent as the most urgent push of its step.
  // No result depends on it.
  int32_t priority = 0;
  float weight = 1.0f;
  float loss_scale = 1.0f;
  float learning_rate = 0.0f;
  // 1 + how many steps the program had ended; 0: not known. Servers fail a round of pushes in which
  // it differs.
  uint32_t program_steps = 0;
  // Optional: what is pushed is the sum of these, each times its scale, added in order, and weight is
  // that of all of them. `data`, float32 (float64 where the tensor is), is overwritten with it first;
  // loss_scale is 1. They stay as they are until the ticket is done.
  std::shared_ptr<const PushSources> sources;
  // Optional, float32[elements]: what the codec leaves out of this push, p - decode(encode(p)) of p
  // = weight / loss_scale * data. Unchanged where absent. Only where the push has no memory of its
  // own.
  float* left_out = nullptr;
  // Not null: `data` lies in this device's memory, and codec_for_devices of the tensor's facts is
  // not null. Without sources and left_out.
  CodecDevice* device = nullptr;
  // Optional: runs on a thread of ours and gives the ticket up; Wait is then not for it.
  std::function<void(TicketId ticket, const absl::StatusOr<PushResult>& result)> done;
};

// What a caller may know of a tensor that it declared.
struct TensorFacts {
  std::string name;
  DType dtype = DType::kFloat32;
  uint64_t elements = 0;
  // The codec of its pushes, where a CodecDevice can stand for the host in its exchanges; else
  // null.
  std::shared_ptr<const Codec> codec_for_devices;
};

// What a training process asks of a job, whoever does it for it: a Worker in the same process.
// Thread-safe. Every wait ends, and its error names tensor, step, stage and whom it waits for.
class Client {
 public:
  virtual ~Client() = default;

  virtual Rank rank() const = 0;
  virtual int size() const = 0;  // number of workers

  // What gradients are best made of: they are pushed without a copy where one can be spared.
  virtual std::shared_ptr<MemoryDomain> memory() = 0;

  // Ids of the tensors, in order. Collective: see ControlPlane::Declare. Those declared before with
  // the same facts are answered at once; with others, InvalidArgument says what differs.
  virtual absl::StatusOr<std::vector<uint32_t>> Declare(std::vector<TensorDeclaration> tensors,
                                                        absl::Duration timeout) = 0;

  // The caller is done with these tensors: their ids name nothing from now on, and a declaration of their
  // names is one of new tensors, at step 0 and without memories. When all workers have done it, the servers
  // forget what they hold of them. Pushes that have not begun end with Cancelled; what is in flight goes on.
  // Never waits. Ids that name nothing are passed over. InvalidArgument, and nothing has changed: a tensor is
  // fused with others that are not among these.
  virtual absl::Status Retire(std::span<const uint32_t> tensors) = 0;

  // Returns what is known of a declared tensor. NotFound: it was not declared, or it is retired.
  virtual absl::StatusOr<TensorFacts> FactsOf(uint32_t tensor) const = 0;
  // Starts exchanges, in order, up to the first that is refused; `tickets` gets those that are in
  // flight, and the error is that one's. InvalidArgument, and nothing of it has changed, for a
  // request that does not fit its declaration; the job's failure once there is one.
  virtual absl::Status PushPullAll(std::span<PushRequest> requests,
                                   std::vector<TicketId>* tickets) = 0;
  absl::StatusOr<TicketId> PushPull(PushRequest request) {
    std::vector<TicketId> tickets;
    BDN_RETURN_IF_ERROR(PushPullAll({&request, 1}, &tickets));
    return tickets.front();
  }
  // Waits for tickets, in order, and gives them up, up to the first that ends in an error or not at
  // all; `results` gets those before it. DeadlineExceeded: it is still in flight, and the error
  // names what it waits for. NotFound: no such ticket. Those behind it are as they were.
  virtual absl::Status WaitAll(std::span<const TicketId> tickets, absl::Duration timeout,
                               std::vector<PushResult>* results) = 0;
  // What a ticket is in flight for, as the error of a WaitAll that has timed out. NotFound: it has
  // ended.
  virtual absl::Status DescribeWait(TicketId ticket) = 0;
  absl::StatusOr<PushResult> Wait(TicketId ticket, absl::Duration timeout) {
    std::vector<PushResult> results;
    BDN_RETURN_IF_ERROR(WaitAll({&ticket, 1}, timeout, &results));
    return results.front();
  }

  // Overwrites `data` with the root's on every worker. Collective; the name is declared on first
  // use.
  virtual absl::Status Broadcast(const std::string& name, MutableByteSpan data, Rank root,
                                 absl::Duration timeout) = 0;
  virtual absl::Status Barrier(const std::string& name, absl::Duration timeout) = 0;

  // Says a value of the program, for who looks at the job: it goes with the next heartbeat. Never waits. Errors
  // as of ControlPlane::ReportValue.
  virtual absl::Status ReportValue(const ReportedValue& value) = 0;

  // Waits until the servers have all that was started here, then until all workers are leaving, up
  // to `timeout` each. DeadlineExceeded of the first wait names what is in flight and has changed
  // nothing; of the second it names who is missing, and the job is over. Meanwhile nothing new may
  // be asked of the others or the servers: FailedPrecondition. What has no answer when all have
  // left ends with Aborted.
  virtual absl::Status Leave(absl::Duration timeout) = 0;
  // Ends the job for everybody; the error names this worker and `reason`.
  virtual absl::Status Abort(const std::string& reason) = 0;
  // Ends every wait, present and coming, with Cancelled; unless Leave succeeded, ends the job for
  // everybody. Idempotent; the destructor does it, too.
  virtual void Close() = 0;

  // Makes a call about the state of tensors, once CheckStateCall has passed it; what it reads is in
  // the call then. At this worker's link it is done at once, and `timeout` is not looked at. At the
  // servers it blocks until all of them have answered, `timeout` at most, and kSet, kSetCounters
  // and kSetRule are for one rank only, between steps, while no worker pushes the tensor.
  //
  // Errors besides CheckStateCall's. NotFound: a tensor was not declared, or it is retired; or its
  // rule and codec keep no such part; or, of a rule, the servers hold no weights of a tensor, or
  // those who follow them know the declared rule. InvalidArgument: the servers do not take the
  // numbers, or the rule is of another kind. FailedPrecondition: another call about the tensor is
  // open; this worker is leaving. AlreadyExists: another rank sets the tensor's state.
  // DeadlineExceeded names what it waits for.
  virtual absl::Status Perform(StateCall* call, absl::Duration timeout) = 0;
};

}  // namespace bdn

#endif  // BANDONEON_WORKER_CLIENT_H_
