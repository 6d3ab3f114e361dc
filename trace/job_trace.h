#ifndef BANDONEON_TRACE_JOB_TRACE_H_
#define BANDONEON_TRACE_JOB_TRACE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/ids.h"
#include "trace/clock_alignment.h"
#include "trace/trace_file.h"

namespace bdn {

// The times that are recorded of an exchange, in the order in which it passes them. Those from
// kArrived to kReplied are its server's.
enum class ExchangePoint : uint8_t {
  kQueued,     // claimed at the worker
  kEncoding,   // a thread of the worker begins to encode it
  kSending,    // the push is given to the transport
  kSent,       // the transport has handed it over
  kArrived,    // the server's poller has it
  kTaken,      // the shard's thread takes it
  kAccepted,   // it is checked, and added or kept
  kClosed,     // all pushes of its round are there
  kSummed,     // the sum is there
  kRuled,      // the rule has made its step
  kReplied,    // the reply is encoded
  kReplySent,  // the server's transport has handed the reply over
  kReplyHere,  // the worker has the reply
  kDecoding,   // a thread of the worker begins to decode it
  kDecoded,    // the result is in the tensor
  kEnded,      // the program has been told
};
inline constexpr size_t kNumExchangePoints = 16;

// The parts of an exchange between two points, by where its time went.
enum class ExchangePart : uint8_t {
  kQueue,
  kEncode,
  kSend,  // until the server has the push
  kServerQueue,
  kSum,
  kHold,  // until the last worker's push is there
  kRule,
  kServerEncode,
  kReply,   // until the worker has the reply
  kAnswer,  // all from the push to the reply, where the server's recording lacks it
  kDecodeQueue,
  kDecode,
  kDeliver,  // until the program goes on
};
inline constexpr size_t kNumExchangeParts = 13;
std::string_view ExchangePartName(ExchangePart part);  // "server_queue"

// Stands for a time that is not recorded.
inline constexpr int64_t kNoTime = std::numeric_limits<int64_t>::min();

// One push of a key with its pull. Times are those of the common clock.
struct Exchange {
  uint64_t key = 0;
  uint64_t step = 0;
  uint32_t worker = 0;       // its index in JobTrace::nodes
  int32_t server = -1;       // likewise; -1 where no recording tells
  NodeId server_node = 0;    // the node that has its key; 0 where no recording tells
  int32_t last_worker = -1;  // the index of the worker whose push closed the round; -1: unknown
  int32_t priority = 0;      // of the push, as its worker's queue had it
  uint16_t shard = 0;        // the place of the thread that summed it among its server's threads
  // Bytes; 0 where they are not recorded.
  uint32_t value_bytes = 0;  // of the key, uncompressed
  uint32_t push_bytes = 0;   // of the push's payload
  uint32_t reply_bytes = 0;
  std::array<int64_t, kNumExchangePoints> points;

  int64_t At(ExchangePoint point) const { return points[static_cast<size_t>(point)]; }
  int64_t Begin() const;  // the first time that is recorded
  // When the result was there; kNoTime where it has not ended. The program may go on before
  // kEnded, which is counted behind it.
  int64_t End() const;
};

// A stretch of an exchange's time.
struct PartSpan {
  ExchangePart part;
  int64_t begin_ns;
  int64_t end_ns;
};
// Returns the time of an exchange that has ended, without gaps and overlaps from its first point to
// its end. Clocks that are not sure to the ns may put a point in front of the one before it; then
// that part has no time.
std::vector<PartSpan> PartsOf(const Exchange& exchange);

struct JobNode {
  NodeTrace trace;  // its times are those of the common clock
  ClockMap clock;
  int64_t real_minus_common_ns =
      0;                            // what its machine's time of day had more than the common clock
  std::vector<uint32_t> exchanges;  // of a worker, by their ends; those without an end come last
};

// A node that was asked for its records while the job ran, and gave none.
struct AbsentNode {
  std::string name;        // "worker 3"
  std::string why;         // a sentence about it: "it did not answer for 5s"
  bool is_silent = false;  // it did not answer
};

// All recordings of one job, on one clock, with their exchanges. Immutable once it is made.
struct JobTrace {
  std::string job;
  std::vector<JobNode> nodes;       // workers by rank, then servers, then attached processes
  std::vector<Exchange> exchanges;  // by key, step and worker
  // What is missing or doubtful, as sentences.
  std::vector<std::string> warnings;
  std::map<NodeId, AbsentNode> absent;  // of a dump

  std::optional<uint32_t> IndexOf(NodeId node) const;
  // Return the index of an exchange, and those of all workers' exchanges of a step of a key.
  std::optional<uint32_t> FindExchange(uint64_t key, uint64_t step, uint32_t worker) const;
  std::vector<uint32_t> ExchangesOf(uint64_t key, uint64_t step) const;
  std::string NodeName(uint32_t index) const { return nodes[index].trace.facts.Name(); }
  // The name of a node by its number, also of one without a recording.
  std::string NodeNameOf(NodeId node) const;
  // The name of a key by any recording that has it, or its number.
  std::string NameOf(uint64_t key) const;
  // The first and last times of any record; 0 without records.
  int64_t FirstNs() const;
  int64_t LastNs() const;
};

struct JobSelection {
  std::string job;  // its name, where a directory has recordings of several
  TraceSelection records;
};

// Joins recordings of one job.
absl::StatusOr<JobTrace> JoinTraces(std::vector<NodeTrace> traces);
// Reads all recordings in a directory. NotFound where there is none; InvalidArgument where those of
// several jobs are there and `selection` names none of them, or another one. A file that cannot be
// read is a warning, unless none can.
absl::StatusOr<JobTrace> ReadJob(const std::string& directory, const JobSelection& selection = {});

}  // namespace bdn

#endif  // BANDONEON_TRACE_JOB_TRACE_H_
