#ifndef BANDONEON_WORKER_ROWS_ROW_EXCHANGES_H_
#define BANDONEON_WORKER_ROWS_ROW_EXCHANGES_H_

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/executor.h"
#include "common/base/mutex.h"
#include "link/row_link.h"
#include "worker/client.h"
#include "worker/pipeline/request_runner.h"
#include "worker/rows/row_requests.h"
#include "worker/tensor_table.h"
#include "worker/ticket_table.h"

namespace bdn {

// The pushes, fetches and inits of a worker's tables, from the callers' arrays to the ends of their
// tickets. A call becomes requests to the keys of its tables, one for each bucket; those of one key
// go one after the other, in the order of the calls. Frames are made on the caller's thread.
// Thread-safe; its state is guarded by the tensor table's lock, and no callback runs under that.
class RowExchanges final : public Tables {
 public:
  // Borrows all. The executor must have run all queued work before this is destroyed. `over` is
  // called without a lock when a step of a key has ended, with that step.
  RowExchanges(const RowDraws& draws, TensorTable* tensors, RequestRunner* requests,
               Executor* executor, TicketTable* tickets, std::function<void(Step step)> over);
  RowExchanges(const RowExchanges&) = delete;
  RowExchanges& operator=(const RowExchanges&) = delete;

  absl::StatusOr<TicketId> Push(const RowsPush& push) override;
  absl::StatusOr<TicketId> Fetch(std::span<const TableRows> tables) override;
  absl::StatusOr<TicketId> Set(const TableRows& rows) override;
  absl::StatusOr<SummedRows> Summed(uint32_t table) override;
  absl::StatusOr<TableLayout> LayoutOf(uint32_t table) override;
  absl::StatusOr<TicketId> Scan(const RecordsScan& scan) override;
  absl::StatusOr<TicketId> SetRecords(const RecordsSet& set) override;

  // Forgets a key that was removed from the table. Called under the table's lock, by the table's
  // callback, of which the analysis does not know that.
  void OnRemoved(Key key) ABSL_NO_THREAD_SAFETY_ANALYSIS {
    keys_.erase(key);
    summed_.erase(key);
  }

 private:
  // The tables of a call that share keys.
  struct Group {
    std::shared_ptr<const RowLink> link;  // of its first bucket
    std::vector<KeyExchange*> buckets;    // used under the lock alone
    std::vector<uint32_t> tables;         // ids of all tables of the group, by segment
    TablesInCall in_call;                 // by segment
    Step step = 0;                        // of a push
    // Of tables whose rule is mean: what came, by bucket and segment.
    std::vector<BucketMeans> means;
  };
  // A call, which its requests share.
  struct Call {
    std::vector<Group> groups;
    RecordsScan scan;     // of a call of Scan
    size_t num_open = 0;  // requests that have not ended; guarded by the table's lock
    TicketId ticket = 0;
  };
  struct Pending {
    std::shared_ptr<Call> call;
    size_t group = 0;
    uint32_t bucket = 0;
    int num_damaged = 0;              // answers that a network has damaged
    bool is_after_nonfinite = false;  // fetches what the reply of a step that was left out lacks
    RequestTable::Request request;
  };
  struct KeyQueue {
    std::shared_ptr<const RowLink> link;
    std::deque<Pending> pending;  // the first is in flight
  };
  using Ended = std::vector<TicketTable::Ended>;

  // Finds the groups of the tables, and checks the arrays. Where not `is_cut`, all of a call about
  // a bucket goes in one frame, and must fit.
  absl::StatusOr<std::shared_ptr<Call>> Begin(std::span<const TableRows> tables, bool is_cut)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(calls_);
  // Begins a call about one table; its segment.
  absl::StatusOr<std::shared_ptr<Call>> BeginOne(const TableRows& rows, size_t* segment)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(calls_);
  // Checks that a call sets no row twice.
  static absl::Status CheckEachOnce(const RowLink& link, size_t segment, const RowSet& ids);
  static FrameHeader RecordsHeader(FrameType type, const Group& group, uint32_t bucket,
                                   size_t segment);
  absl::Status FindGroups(std::span<const TableRows> tables, Call* call)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(tensors_->mutex());
  absl::StatusOr<std::shared_ptr<const RowLink>> LinkOf(const KeyExchange& key)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(tensors_->mutex());
  static Pending MakePending(const std::shared_ptr<Call>& call, size_t group, uint32_t bucket);
  RequestTable::Request RequestFor(const KeyExchange& key, Frame frame) const;
  // Queues the requests of a call, of which there is at least one, and sends those that can go.
  // After an error of the worker's none was queued, and the call's ticket is not open.
  absl::Status Start(std::shared_ptr<Call> call, std::vector<Pending> requests, uint32_t table,
                     Step step);
  void Submit(Key key);
  void OnAnswer(Key key, RequestTable::Outcome outcome);
  void Finish(Key key, Pending pending, RequestTable::Outcome outcome);
  absl::Status Decode(const Pending& pending, const Frame& answer) const;

  const RowDraws draws_;
  TensorTable* const tensors_;
  RequestRunner* const requests_;
  Executor* const executor_;
  TicketTable* const tickets_;
  const std::function<void(Step step)> over_;
  Mutex calls_;  // taken before the table's lock: lets one call go on at a time, in their order
  std::map<Key, KeyQueue> keys_ ABSL_GUARDED_BY(tensors_->mutex());
  // The last step of each group whose rule is mean, by the key of its first bucket.
  std::map<Key, std::shared_ptr<Call>> summed_ ABSL_GUARDED_BY(tensors_->mutex());
};

}  // namespace bdn

#endif  // BANDONEON_WORKER_ROWS_ROW_EXCHANGES_H_
