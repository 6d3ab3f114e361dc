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
#include "worker/rows/rows_push.h"
#include "worker/state_call.h"

namespace bdn {

class CodecDevice;
class ProgramClock;
class Recorder;

// The number of one push and pull in flight, for its caller. 0 is none.
using TicketId = uint64_t;

// The result of one push and pull, beside its data.
struct PushResult {
  Step step = 0;
  bool absent = false;     // no worker had a gradient; the data is unchanged
  bool nonfinite = false;  // some worker's gradient was not finite; the data is NaN
  // Elements that the codec of the reply could only guess; at most UINT32_MAX are counted.
  uint32_t guessed = 0;
};

// The place of a worker in its job.
struct Standing {
  Rank rank = 0;
  int joined_size = 0;  // workers that have joined: all ranks are below it, whoever is lost later
  // It has joined a job that runs, and was not taken in yet. Until then its barriers and broadcasts
  // return at once, the data of a broadcast stays as it is, calls that set the state of tensors do
  // nothing, and pushes and calls that read from servers are refused: FailedPrecondition. It may
  // declare what the others have declared, in any order, and nothing else; what it retires counts
  // once it is taken in.
  bool is_candidate = false;
  // Candidates that wait at the boundary, as far as this worker has heard. For a look between
  // steps: workers see it change at different moments, and so must agree on a boundary.
  int num_candidates = 0;
};

// The workers of a job that were not lost.
struct Presence {
  int size = 0;         // their number
  Rank first_rank = 0;  // the lowest of their ranks; -1 where a group has none

  bool operator==(const Presence&) const = default;
};

// What a worker has of the value of a broadcast before it comes.
enum class Holding {
  kUnknown,  // parts of it maybe: those are not sent, by their digests
  kNothing,  // so nothing is hashed
  kValue,    // it takes part, is sent nothing, and of its data the sizes alone are looked at
};

// A broadcast: overwrites `data` with that of worker `root`.
struct BroadcastCall {
  std::string name;
  std::span<const MutableByteSpan> data;  // in order: how it is cut differs between workers
  Rank root = 0;
  Holding holding = Holding::kUnknown;  // of the root, nothing is looked at
};

// One of several gradients that are pushed as their sum.
struct PushSource {
  // An array of the tensor's declared type and size. Null: `codec` and `payload` replace it.
  ConstView data;
  float scale = 1.0f;  // its weight / its loss scale
  // Encodes `payload`, all elements in chunks: worker/pipeline/chunked_payload.h.
  const Codec* codec = nullptr;
  ByteSpan payload;
};
using PushSources = std::vector<PushSource>;

// A caller's request to exchange one tensor. The data is read, then overwritten.
struct PushRequest {
  uint32_t tensor = 0;  // from Declare
  // With 0 elements it has the tensor's declared type and size (for a sum, the sum's type: see
  // `sources`). Null with `absent` where the result is not wanted: then it is not sent here, and
  // `absent` of the PushResult is false, unless no worker had a gradient of anything that shares
  // its frame.
  MutableView data;
  bool absent = false;
  // Higher goes first, among pushes that wait to be encoded or sent, or in a server to be summed,
  // and among replies that wait to be sent or decoded. A server's reply to all workers has the
  // highest priority of the step's pushes. No result depends on it.
  int32_t priority = 0;
  float weight = 1.0f;
  float loss_scale = 1.0f;
  float learning_rate = 0.0f;
  // 1 + the number of steps that the program had finished; 0: not known. Servers fail a round whose
  // pushes disagree.
  uint32_t program_steps = 0;
  // Optional: the push is the sum of these, each times its scale, added in order; `weight` is the
  // weight of all together. `data`, float32 (float64 where the tensor is), is first overwritten
  // with the sum; loss_scale is 1. The sources must not change until the ticket is done.
  std::shared_ptr<const PushSources> sources;
  // Optional, float32[elements]: gets what the codec leaves out of this push, p - decode(encode(p))
  // for p = weight / loss_scale * data. Unchanged where absent. Allowed only where the push keeps
  // no residual or momentum of its own.
  float* left_out = nullptr;
  // Not null: `data` lies in this device's memory, and the tensor's facts have a codec_for_devices.
  // Not allowed with sources or left_out.
  CodecDevice* device = nullptr;
  // Optional: called on a thread of the library when the exchange ends. It gives the ticket up, so
  // Wait must not be called for it.
  std::function<void(TicketId ticket, const absl::StatusOr<PushResult>& result)> done;
};

// The facts about a declared tensor that its callers may use.
struct TensorFacts {
  std::string name;
  DType dtype = DType::kFloat32;
  uint64_t elements = 0;
  // The codec of its pushes, if a CodecDevice can replace the host in its exchanges; else null.
  std::shared_ptr<const Codec> codec_for_devices;
};

// The receivers of a program's marks.
struct ProgramRecords {
  Recorder* recorder = nullptr;  // of this process; null: nothing is recorded
  // Sums, which the scheduler is told. Null: it is not, as by a process that is attached to a
  // host's daemon.
  ProgramClock* clock = nullptr;
};

// The calls about tables of rows. Those that return a ticket do not wait: Client::WaitAll does.
// InvalidArgument names table, id and position, and nothing has changed. Thread-safe.
class Tables {
 public:
  virtual ~Tables() = default;

  // Starts a step of tables. A gradient that is not finite leaves the step out at all workers: the
  // rows that are wanted come as they were. Every worker must step each group of tables equally
  // often.
  virtual absl::StatusOr<TicketId> Push(const RowsPush& push) = 0;
  // Fetches the wanted rows of these, as they are at their servers. A row that was never updated
  // has its initial value, and is still stored nowhere.
  virtual absl::StatusOr<TicketId> Fetch(std::span<const TableRows> tables) = 0;
  // Sets rows to the values that stand for their gradients, with fresh moments. For one rank only,
  // between steps, while no worker steps the table. AlreadyExists: another rank sets rows.
  virtual absl::StatusOr<TicketId> Set(const TableRows& rows) = 0;
  // Returns the means of the last step of a table whose rule is mean: of all rows that any worker
  // has pushed. FailedPrecondition: that step's ticket is not done. NotFound: no step had any.
  virtual absl::StatusOr<SummedRows> Summed(uint32_t table) = 0;
  // Returns how a table's records look.
  virtual absl::StatusOr<TableLayout> LayoutOf(uint32_t table) = 0;
  // Fetches a piece of a table's records as they are. Rows that are updated or set between two
  // pieces may be in the later one or not.
  virtual absl::StatusOr<TicketId> Scan(const RecordsScan& scan) = 0;
  // Sets records; between steps. Several ranks may set records of rows that are different ones.
  virtual absl::StatusOr<TicketId> SetRecords(const RecordsSet& set) = 0;
};

// The interface of a training process to its job. Its implementations are Worker, in the same
// process, and HostClient, through the daemon of its machine. Thread-safe. Every wait ends, and its
// error names the tensor, the step, the stage and the nodes for which it waited.
class Client {
 public:
  virtual ~Client() = default;

  virtual Standing standing() const = 0;
  Rank rank() const { return standing().rank; }
  int joined_size() const { return standing().joined_size; }
  bool is_candidate() const { return standing().is_candidate; }
  // Returns the workers of a group that were not lost, as far as this one has heard: another may
  // have heard of a loss earlier or later. Meet tells all the same.
  virtual Presence PresenceAmong(const RankGroup& group) const = 0;
  Presence presence() const { return PresenceAmong(RankGroup()); }
  // Returns how many processes each worker of the job has, by rank: ranks are counted through them.
  // A host's processes, which take part as one worker, come and go together. Constant.
  virtual const std::vector<int>& processes() const = 0;

  // Returns the memory in which gradients are best made: they are pushed from it without a copy
  // where one can be avoided.
  virtual std::shared_ptr<MemoryDomain> memory() = 0;

  virtual ProgramRecords program_records() = 0;
  // Returns the number that stands for a tensor in records; 0 for one that was not declared.
  // REQUIRES: there is a recorder.
  virtual uint64_t RecordedKeyOf(uint32_t /*tensor*/) { return 0; }

  // Declares tensors and returns their ids, in order. Collective among the workers of a tensor's
  // ranks: see ControlPlane::Declare. Tensors of several groups are declared group after group, in
  // one order at all workers. Unimplemented, of a group, through a host's daemon.
  // Tensors declared before with the same facts are answered at once; with other facts,
  // InvalidArgument says what differs. NotFound: a candidate's are not declared by the others, yet.
  virtual absl::StatusOr<std::vector<uint32_t>> Declare(std::vector<TensorDeclaration> tensors,
                                                        absl::Duration timeout) = 0;

  // Retires tensors: their ids name nothing from now on, and a declaration of their names declares
  // new tensors, at step 0 and without residuals. When all workers have done it, the servers forget
  // the tensors' state. Pushes that have not begun end with Cancelled; exchanges in flight go on.
  // Never waits. Ids that name nothing are ignored. InvalidArgument: a tensor is fused with others
  // that are not among these; then nothing has changed.
  virtual absl::Status Retire(std::span<const uint32_t> tensors) = 0;

  // Returns the facts about a declared tensor. NotFound: it was not declared, or it is retired.
  virtual absl::StatusOr<TensorFacts> FactsOf(uint32_t tensor) const = 0;
  // Returns the ranks of the servers that now sum the parts of a tensor, in the order of the parts;
  // -1 for a part whose server is lost and that no other one has taken over. NotFound as FactsOf.
  // Unimplemented through a host's daemon, which keeps that to itself.
  virtual absl::StatusOr<std::vector<Rank>> ServersOf(uint32_t /*tensor*/) const {
    return Unimplemented(
        "this process takes part through its host's daemon, which alone knows the servers");
  }
  // Starts exchanges, in order, up to the first that is refused. `tickets` gets the tickets of
  // those that are in flight, and the error is the refused one's. InvalidArgument: the request does
  // not fit its declaration, and nothing of it has changed. After the job has failed, its failure.
  virtual absl::Status PushPullAll(std::span<PushRequest> requests,
                                   std::vector<TicketId>* tickets) = 0;
  absl::StatusOr<TicketId> PushPull(PushRequest request) {
    std::vector<TicketId> tickets;
    BDN_RETURN_IF_ERROR(PushPullAll({&request, 1}, &tickets));
    return tickets.front();
  }
  // Waits for tickets, in order, and gives them up, as far as the first that ends in an error or
  // not at all; `results` gets the results before it. DeadlineExceeded: it is still in flight, and
  // the error names what it waits for. NotFound: there is no such ticket. The tickets behind it are
  // unchanged.
  virtual absl::Status WaitAll(std::span<const TicketId> tickets, absl::Duration timeout,
                               std::vector<PushResult>* results) = 0;
  // Returns what a ticket waits for, as the error of a WaitAll that has timed out. NotFound: it has
  // ended.
  virtual absl::Status DescribeWait(TicketId ticket) = 0;
  absl::StatusOr<PushResult> Wait(TicketId ticket, absl::Duration timeout) {
    std::vector<PushResult> results;
    BDN_RETURN_IF_ERROR(WaitAll({&ticket, 1}, timeout, &results));
    return results.front();
  }

  // Returns the calls about tables of rows, which live as long as this. Unimplemented, of a process
  // that takes part through its host's daemon, says what to do: no table can be declared then.
  virtual absl::StatusOr<Tables*> tables() = 0;

  // Overwrites data with the root's on every worker. Collective; the name is declared on first
  // use. A name made by NameAmong is of the workers of its group alone, here and in Meet and
  // Barrier; through a host's daemon it is Unimplemented. InvalidArgument: there is no such root.
  virtual absl::Status BroadcastParts(const BroadcastCall& call, absl::Duration timeout) = 0;
  absl::Status Broadcast(const std::string& name, MutableByteSpan data, Rank root,
                         absl::Duration timeout) {
    return BroadcastParts({.name = name, .data = {&data, 1}, .root = root}, timeout);
  }
  // Waits for all workers that are present to call it with this name. Returns their ranks, rising:
  // the same to all who met. The ranks of workers that were lost are vacant.
  virtual absl::StatusOr<std::vector<Rank>> Meet(const std::string& name,
                                                 absl::Duration timeout) = 0;
  // Meets all workers that are present at the boundary, between two steps, and takes in the
  // candidates that wait there. Returns the ranks of the newcomers' processes, rising: the same to
  // all who met, newcomers too. A candidate waits here until it is taken in. Its keys then stand
  // where those of the others do; its tensors' values, its residuals and its momenta are its own.
  // FailedPrecondition: an exchange of this worker is in flight. DeadlineExceeded names whom it
  // waits for. Processes of a host call it together, and come in together.
  virtual absl::StatusOr<std::vector<Rank>> Boundary(absl::Duration timeout) = 0;
  absl::Status Barrier(const std::string& name, absl::Duration timeout) {
    return Meet(name, timeout).status();
  }

  // Reports a value of the program for the job's status: it goes with the next heartbeat. Never
  // waits. Errors are those of ControlPlane::ReportValue.
  virtual absl::Status ReportValue(const ReportedValue& value) = 0;

  // Leaves the job. Waits until the servers have everything that was started here, then until all
  // workers are leaving, for at most `timeout` in all. DeadlineExceeded of the first wait names
  // what is in flight, and nothing has changed; that of the second names the workers that are
  // missing, and the job is over. Meanwhile requests to other workers or to servers are refused:
  // FailedPrecondition. Exchanges without an answer when all have left end with Aborted.
  virtual absl::Status Leave(absl::Duration timeout) = 0;
  // Goes at once, and leaves the job to the others: they go on as without a lost worker, and hear
  // `reason`. FailedPrecondition, after which nothing has changed: they may not (min-workers).
  // Between steps: what is in flight here ends with Aborted, and no more calls are taken. With a
  // process of a host all of its host go, whose calls end with an error that IsEvicted.
  virtual absl::Status Depart(const std::string& reason) = 0;
  // Ends the job for all workers. Their error names this worker and `reason`.
  virtual absl::Status Abort(const std::string& reason) = 0;
  // Ends every wait, present and future, with Cancelled; unless Leave succeeded, ends the job for
  // all workers. Idempotent; the destructor does it, too.
  virtual void Close() = 0;

  // Makes a call about the state of tensors, after CheckStateCall has passed it; values that it
  // reads are then in the call. At this worker's link it waits for no server, and `timeout` is
  // ignored. At the servers it blocks until all of them have answered, for at most `timeout`; kSet,
  // kSetCounters and kSetRule are for one rank only, between steps, while no worker pushes the
  // tensor.
  //
  // Errors besides those of CheckStateCall. NotFound: a tensor was not declared, or it is retired;
  // or its rule and codec keep no such part; or, for kSetRule, the servers hold no weights of a
  // tensor, or workers follow them by the declared rule. InvalidArgument: the servers do not accept
  // the numbers, or the rule is of another kind. FailedPrecondition: another call about the tensor
  // is open, or this worker is leaving. AlreadyExists: another rank sets the tensor's state.
  // DeadlineExceeded names what it waits for.
  virtual absl::Status Perform(StateCall* call, absl::Duration timeout) = 0;
};

}  // namespace bdn

#endif  // BANDONEON_WORKER_CLIENT_H_
