#ifndef BANDONEON_REPLAY_REPLAY_MODEL_H_
#define BANDONEON_REPLAY_REPLAY_MODEL_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/ids.h"
#include "trace/job_trace.h"

// The model of a recorded job: the cost of each operation, and the program between its waits. A
// replay finds out anew who waits for what, and how long.

namespace bdn {

// The costs of one push with its pull. Times are ns, bytes those of payloads.
struct ExchangeCosts {
  uint32_t key = 0;    // its place in ReplayModel::keys
  uint32_t round = 0;  // its place in ReplayModel::rounds
  int32_t priority = 0;
  uint32_t push_bytes = 0;
  uint32_t reply_bytes = 0;
  // Until a thread that was free began with it.
  int64_t encode_wake_ns = 0;
  int64_t accept_wake_ns = 0;  // of a shard that had nothing to do when the push came
  int64_t accept_gap_ns = 0;   // between the push and the one that the shard had before
  int64_t decode_wake_ns = 0;
  int64_t encode_ns = 0;
  int64_t send_ns = 0;    // on its way to the server, beyond what the link's rate explains
  int64_t accept_ns = 0;  // the server's thread takes the push, and adds it where its turn has come
  int64_t reply_ns = 0;   // on the way back, likewise
  int64_t decode_ns = 0;
  // From its departure to its reply, where the server has no recording; -1 where it has one.
  int64_t answer_ns = -1;
};

// A step of a key at its server, when all pushes are there.
struct RoundCosts {
  uint32_t key = 0;
  Step step = 0;           // of the key
  int64_t foreign_ns = 0;  // it waited so long for workers that have no recording
  int64_t sum_ns = 0;
  int64_t rule_ns = 0;
  int64_t encode_ns = 0;
};

// A piece of a program, in the order of its thread.
struct ProgramItem {
  enum class Kind : uint8_t {
    kCompute,  // takes `ns`, under the mark `mark` (a TraceKind; 0: none)
    kStart,    // begins exchange `first` of the step, `ns` after this moment
    kWait,     // waits for `count` of StepProgram::awaited from `first` on, and then takes `ns`
  };
  Kind kind = Kind::kCompute;
  uint8_t mark = 0;
  uint32_t first = 0;
  uint32_t count = 0;
  int64_t ns = 0;
};

// An exchange that a wait waits for.
struct AwaitedExchange {
  uint32_t steps_back = 0;
  uint32_t exchange = 0;  // its place in that step
};

// One recorded step of one worker's program.
struct StepProgram {
  std::vector<ProgramItem> items;
  std::vector<AwaitedExchange> awaited;
  std::vector<ExchangeCosts> exchanges;
  int64_t wall_ns = 0;    // as it was recorded
  int64_t queued_ns = 0;  // of it the program was ready to run and did not
};

struct WorkerModel {
  std::string name;
  Rank rank = 0;
  uint32_t node = 0;     // its index in the recording's JobTrace::nodes
  std::string host;      // the name of its machine
  double link_rate = 0;  // bytes a second each way; 0: no limit
  uint32_t threads = 2;  // that encode and decode
  uint64_t max_bytes_in_flight = 0;
  int64_t begin_ns = 0;            // when its first step begins, behind the first worker's
  std::vector<StepProgram> steps;  // as ReplayModel::step_numbers
  // Those of a worker that was made of a recorded one, which has them in common with others. Then
  // `steps` is empty.
  std::shared_ptr<const std::vector<StepProgram>> shared_steps;

  const std::vector<StepProgram>& Steps() const { return shared_steps ? *shared_steps : steps; }
};

struct ServerModel {
  std::string name;
  uint32_t node = 0;
  std::string host;
  double link_rate = 0;
  uint32_t shards = 1;
  uint64_t max_bytes_in_flight = 0;
};

struct KeyModel {
  Key key;
  std::string name;  // of its tensor
  uint64_t value_bytes = 0;
  uint32_t server = 0;  // its place in ReplayModel::servers
  uint32_t shard = 0;
};

// A job as the replay sees it. A value, which settings change.
struct ReplayModel {
  std::vector<WorkerModel> workers;
  std::vector<ServerModel> servers;
  std::vector<KeyModel> keys;
  std::vector<RoundCosts> rounds;
  std::vector<uint64_t> step_numbers;
  // The processors of each machine that were idle, a mean; machines without samples are missing.
  std::map<std::string, double> idle_processors;
  bool has_marks = false;      // else it is of exchanges alone
  bool has_link_rate = false;  // the setting link said the rate; else it is estimated
  // Texts of settings of the recorded job; empty where it had the default.
  std::string push_spec;
  std::string pull_spec;
  // The settings by which tensors became keys. Older recordings do not have them, and get the
  // defaults here.
  uint64_t partition_bytes = 0;
  uint64_t fusion_bytes = 0;
  uint64_t min_compress_bytes = 0;
  // Sentences about what is missing or doubtful.
  std::vector<std::string> warnings;

  uint64_t CountExchanges() const;
};

// A key of at most so many bytes is encoded and decoded by the thread that has it (the pipeline of
// workers has this limit, too).
inline constexpr uint64_t kReplayShortKey = 16 << 10;

// Makes the model of the longest run of whole steps. NotFound where no step is whole; Unimplemented
// where programs take part through a host's daemon.
absl::StatusOr<ReplayModel> MakeReplayModel(const JobTrace& job);

}  // namespace bdn

#endif  // BANDONEON_REPLAY_REPLAY_MODEL_H_
