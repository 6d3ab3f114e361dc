#ifndef BANDONEON_SERVER_KEY_REBUILD_H_
#define BANDONEON_SERVER_KEY_REBUILD_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "common/wire/frame.h"
#include "common/wire/message.h"
#include "server/shard_context.h"

namespace bdn {

struct KeyState;

// The progress of a key that has come from a lost server, until it is as that server had it. A
// value; over where the key has been here from the beginning.
struct KeyRebuild {
  enum class Phase : uint8_t {
    kOver,       // the key is whole
    kGathering,  // waits for the reports of all workers
    kSetting,    // waits for the snapshot, or the broadcast's value, of `setter`
    kGiving,     // waits for the reply of `giver`, from which the key is estimated
    kRedoing,    // takes the pushes after `start` up to `target`, and the inits among them
    kGone,       // a worker has retired the key and forgotten it
    kFailed,     // it cannot be rebuilt, which ends the job
  };
  Phase phase = Phase::kOver;
  std::vector<std::optional<KeyReport>> reports;  // by place
  // By place: the report that waits for its order.
  std::vector<std::optional<FrameHeader>> asks;
  Rank setter = -1;
  Rank giver = -1;
  bool is_estimate = false;  // what led to the target is lost, and a worker gives its reply
  // The snapshot is of the target itself, so only the reply is lost.
  bool is_exact = false;
  Step start = 0;
  Step target = 0;
  Rank inits_root = -1;           // the rank that repeats `inits`
  std::vector<LoggedInit> inits;  // rising

  bool is_over() const { return phase == Phase::kOver; }
};

// The protocol of a key that is rebuilt (proto/wire_format.md, section 8.3). All workers report
// how far they are. The last step that any of them has ended is the target, and the newest snapshot
// from which all pushes up to that are still there is the start: it is set, the pushes are made
// again as rounds like any other, and the key then stands where the lost server had it, with the
// same bits. A worker that lies can make that fail, and no more than a wrong gradient could.
//
// Where a worker was lost, too, there may be no such start. Then the key is estimated
// (server/key_estimate.h): a worker that has ended the target gives its reply.
//
// It holds no state of its own: an object is made for one call. Not thread-safe.
class RebuildingKey {
 public:
  RebuildingKey(KeyState* state, ShardContext* shard) : state_(*state), shard_(*shard) {}

  // Empties the key, and waits for reports of the epoch that has begun. To be called when the key
  // comes here, and in each epoch that begins before it is whole.
  void Begin();
  // Handles a report: also of a key that is whole, whose worker may not know that.
  Sends OnReport(NodeId from, const Frame& frame);
  // Handles any other frame. REQUIRES: the rebuild is not over.
  Sends OnFrame(NodeId from, const Frame& frame);

 private:
  bool is_dense() const;
  const Places& places() const;
  Sends OnDense(NodeId from, const Frame& frame);
  Sends OnInit(NodeId from, const Frame& frame, Rank rank);
  // All workers have reported.
  Sends Decide();
  Sends DecideDense();
  Sends DecideBroadcast();
  // There is no start: takes up the newest snapshot, if there is one, then the last reply.
  Sends BeginEstimate(const absl::Status& why);
  Sends BeginGiving();
  Sends OnGiven(NodeId from, const Frame& frame, Rank rank);
  Sends BeginRedo();
  // Ends the rebuild if nothing is left to be done again.
  Sends EndIfDone();
  bool IsInitDue(Step before) const;
  // Answers the report of one worker, or of all whose report waits.
  Sends Answer(Place place, const RebuildOrder& order);
  Sends AnswerAll(const RebuildOrder& order);
  Sends GoToAll();
  // Ends the rebuild: the key is whole.
  Sends End();
  std::vector<Rank> Unreported(Place asker) const;
  std::vector<Rank> Unfinished(Place asker) const;
  // Lets nobody wait for workers that are leaving: what they had pushed they push again.
  void ExpectAllAgain();
  // Ends the job: the key cannot be rebuilt.
  Sends Fail(const absl::Status& why);
  Sends NotYet(NodeId from, const FrameHeader& header);

  KeyState& state_;
  ShardContext& shard_;
};

}  // namespace bdn

#endif  // BANDONEON_SERVER_KEY_REBUILD_H_
