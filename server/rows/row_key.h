#ifndef BANDONEON_SERVER_ROWS_ROW_KEY_H_
#define BANDONEON_SERVER_ROWS_ROW_KEY_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/cluster/held_bytes.h"
#include "common/cluster/row_counts.h"
#include "common/telemetry/stage_times.h"
#include "common/wire/frame.h"
#include "common/wire/row_block.h"
#include "server/key_plan.h"
#include "server/places.h"
#include "server/rows/row_round.h"
#include "server/rows/row_table.h"
#include "server/shard_context.h"

namespace bdn {

// The state that a server holds for one key of rows: a bucket of each of its tables. A value.
struct RowState {
  // The workers that exchange the key, never null: those that every round waits for.
  std::shared_ptr<const Places> places = std::make_shared<const Places>();
  std::vector<RowTable> tables;  // by segment
  // The rows that came and went since the key was made, by segment; `held` is not set.
  std::vector<RowCounts> became;
  Rank init_root = -1;     // the one rank that may set rows; -1: none has yet
  uint32_t last_init = 0;  // the number of the last init that was applied
  // The same of the records that each worker has set; several may, as each reads a part of a
  // checkpoint.
  absl::flat_hash_map<NodeId, uint32_t> last_records;

  Step last_step = 0;     // the last step that was closed
  Step replied_step = 0;  // the last step with a result
  uint8_t reply_flags = 0;
  // What each worker wants of the rows as replied_step left them, from which its reply is made
  // again: no row changes before all workers have their replies, as the next round needs them.
  absl::flat_hash_map<NodeId, WantedRows> wanted;
  // Of tables whose rule is mean: the means of replied_step, and all of them as a payload for those
  // workers that want no rows in particular.
  std::vector<std::optional<RowSums>> means;
  Buffer all_means;
  size_t wanted_bytes = 0;
  Frame last_failure;               // as of DenseState
  RowRound round;                   // the open round, if there is one
  std::vector<Rank> pushed_before;  // as of DenseState

  // Sets another roster. The open round starts over, as of DenseState.
  void SetRoster(std::shared_ptr<const Places> now);
  size_t row_bytes() const;
  // Returns the bytes of what is kept for replies.
  size_t reply_bytes() const;
  uint64_t rows() const;
  // Returns the counts of the tables that servers hold; none of those whose rule is mean.
  std::vector<TableCounts> CountTables(const RowLink& link) const;
};

// Makes the state of a key that nobody has pushed yet.
RowState MakeRowState(const KeyPlan& plan, uint64_t run_seed);

// The protocol of one key of rows at a server (proto/wire_format.md, section 8.5). A round is that
// of a dense key, but each worker gets a reply of its own: the rows that it wants, as the step left
// them. Each frame is checked before anything changes; a frame that is wrong is answered with an
// error.
//
// It holds no state of its own: an object is made for one call, and borrows the key's state and the
// shard for that call. Not thread-safe: used by the shard's thread.
class RowKey {
 public:
  RowKey(const KeyPlan& plan, RowState* state, ShardContext* shard)
      : plan_(plan), link_(*plan.rows), state_(*state), shard_(*shard) {}

  Sends OnPush(NodeId from, const Frame& frame);
  Sends OnProbe(NodeId from, const FrameHeader& header);
  // Sets rows from one rank, between rounds.
  Sends OnInit(NodeId from, const Frame& frame);
  // Tells rows as they are now, or where the key stands.
  Sends OnFetch(NodeId from, const Frame& frame);
  // As of DenseKey.
  Sends OnLeaving();
  Sends OnRetired();

 private:
  struct PushCheck {
    absl::Status status;
    bool fails_round = false;  // the error is for all workers
  };
  absl::Status CheckStep(const FrameHeader& header) const;
  absl::Status CheckElements(const FrameHeader& header) const;
  // Checks a push, and reads what it wants.
  PushCheck CheckPush(const Frame& push, Place place, RowPush* rows) const;
  // Checks the parts of a payload; calls `take` with each block and its table.
  template <typename Take>
  absl::Status ReadBlocks(ByteSpan payload, size_t row_bytes, size_t most_wanted,
                          const Take& take) const;
  absl::Status CheckNobodyLeaves(Step step, Rank pusher) const;
  // ResourceExhausted: the new rows of a step do not fit into a table that evicts none.
  absl::Status CheckBound(size_t table, const RowTable::Stepped& stepped, Step step) const;
  absl::Status CheckMemory(size_t more, Step step, const std::string& why) const;
  Sends Accept(const Frame& frame, Place place, RowPush rows, StageLaps* laps);
  Sends CloseRound(StageLaps* laps);
  // Makes the step of a complete round on the tables; returns the flags of its replies.
  absl::StatusOr<uint8_t> StepTables(StageLaps* laps);
  Sends FailRound(Step step, const absl::Status& why);
  Sends AnswerClosed(NodeId from, const FrameHeader& header);
  Frame ReplyTo(NodeId node, Step step) const;
  // Returns the payload with these rows, encoded; empty where none are wanted.
  absl::StatusOr<Buffer> EncodeRows(const WantedRows& wanted) const;
  // Returns the payload with the means of the rows that a worker wants; of tables of which it wants
  // none in particular, of all rows that were pushed. ResourceExhausted: it is longer than a frame.
  absl::StatusOr<Buffer> EncodeMeans(const WantedRows& wanted) const;
  absl::Status EncodeRow(std::span<const float> row, MutableByteSpan* out) const;
  absl::Status TakeInit(const Frame& frame, Rank rank);
  // Checks what an init or a fetch of rows or records has in its header. `table` is set where it is
  // about records.
  absl::Status CheckRowsHeader(const FrameHeader& header, const char* what, size_t* table) const;
  absl::Status CheckRequest(const FrameHeader& header, uint32_t last) const;
  RowLimits LimitsOf(size_t table, size_t row_bytes, size_t most_wanted) const;
  absl::Status TakeRecords(const Frame& frame, size_t table);
  absl::StatusOr<Buffer> EncodeRecords(const Frame& frame, size_t table) const;

  absl::StatusOr<Place> PlaceOf(NodeId from, Epoch epoch) const {
    return shard_.PlaceOf(*state_.places, from, epoch);
  }
  Sends ToAll(const Frame& frame) const { return ShardContext::ToAll(*state_.places, frame); }
  FrameHeader PushOf(Step step) const;

  const KeyPlan& plan_;
  const RowLink& link_;
  RowState& state_;
  ShardContext& shard_;
};

}  // namespace bdn

#endif  // BANDONEON_SERVER_ROWS_ROW_KEY_H_
