#ifndef BANDONEON_SERVER_ROWS_ROW_TABLE_H_
#define BANDONEON_SERVER_ROWS_ROW_TABLE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "common/base/bytes.h"
#include "common/wire/row_records.h"
#include "server/rows/initial_row.h"
#include "server/rows/row_cells.h"
#include "server/rows/row_rule.h"
#include "server/rows/row_store.h"

namespace bdn {

// The sum of a step's gradients of one table, row by row, beginning with +0.0. Not thread-safe.
class RowSums {
 public:
  explicit RowSums(size_t width) : width_(width) {}

  // Returns the place of a row, which has a sum from the next call of Grow on: all rows of a step
  // are told first, so that the sums need not move when more come.
  size_t PlaceOf(uint64_t id);
  // Gives rows that have none sums of zeros.
  void Grow() { sums_.resize(ids_.size() * width_, 0.0f); }
  // Returns the sum of a row, zeros before its first gradient. Valid until the next call.
  float* Of(uint64_t id);
  // Returns the sum of a row, or nothing where it has no gradient.
  std::span<const float> Find(uint64_t id) const;
  const std::vector<uint64_t>& ids() const { return ids_; }
  std::span<float> at(size_t i) { return {sums_.data() + i * width_, width_}; }
  std::span<const float> at(size_t i) const { return {sums_.data() + i * width_, width_}; }
  // Returns about how many bytes of memory they take.
  size_t bytes() const;
  // Returns the places of `ids`, in the order in which these rise.
  std::vector<size_t> Rising() const;
  // Multiplies all sums. Returns false if one of them is not finite then.
  bool Scale(float factor);

 private:
  size_t width_;
  absl::flat_hash_map<uint64_t, size_t> places_;
  std::vector<uint64_t> ids_;  // in the order in which they came
  std::vector<float> sums_;
};

// The rows that a server holds of one table in one bucket. A row that was never updated is not
// stored: it has its initial value, so that reading costs no memory.
//
// The table's spec may say that a row is stored only once several updates had a gradient of it;
// until then its id is a candidate. Rows of full cells and rows of some age are removed, and have
// their initial values again. What becomes of a row is a function of the updates of its cell and of
// the table's count of updates, and of nothing else. An id that was removed is kept for a while, so
// that a scan can tell what is no more. A value; not thread-safe.
class RowTable {
 public:
  // `rule` is borrowed.
  RowTable(const InitialValues& initial, const RowRule* rule, size_t width, size_t moment_floats);
  RowTable(const RowTable& other);
  RowTable& operator=(const RowTable& other) { return *this = RowTable(other); }
  RowTable(RowTable&&) = default;
  RowTable& operator=(RowTable&&) = default;

  size_t rows() const { return store_->size(); }
  size_t candidates() const { return candidates_->size(); }
  size_t bytes() const;
  // Returns about how many bytes so many new rows and candidates take, beyond the memory that
  // removed ones have left.
  size_t BytesOfNew(size_t rows, size_t candidates) const;
  uint64_t updates() const { return updates_; }

  // Writes a row's value.
  void Read(uint64_t id, std::span<float> row) const;
  // Calls `take` with the value of each row, in order, until that returns an error, and returns it.
  absl::Status ReadAll(std::span<const uint64_t> ids,
                       const std::function<absl::Status(std::span<const float> row)>& take) const;
  // Returns how many of the rows are not stored yet.
  size_t CountNew(std::span<const uint64_t> ids) const;
  // Sets a row's value; its moments become those of a row that was never updated.
  void Set(uint64_t id, std::span<const float> row);

  // Returns the bytes of a record: all that is kept of a row (common/wire/row_records.h).
  size_t record_bytes() const { return RecordBytes(width_, moment_floats_); }
  // Returns the number of places of a list that Scan may begin at.
  uint64_t places(RowList list) const { return StoreOf(list).places(); }
  // Returns the count of updates after which no id that was removed is forgotten.
  uint64_t complete_since() const { return complete_since_; }
  // Collects up to `most` records of a list that were changed after `since` updates of the table,
  // from a place on. It looks at so many places at most that a shard is not held up, so that there
  // may be none of them before the end.
  struct Scanned {
    std::vector<std::pair<uint64_t, const float*>> records;  // ids rising; as of RowStore::Find
    uint64_t next = 0;                                       // the place to go on at; 0: the end
  };
  Scanned Scan(RowList list, uint64_t place, uint64_t since, size_t most) const;
  // Checks a record of a list. InvalidArgument says what is wrong. REQUIRES: it has ListedBytes of
  // record_bytes().
  absl::Status CheckRecord(RowList list, ByteSpan record, uint64_t updates) const;
  // Sets a record that was checked: an id of one list is in no other afterwards. A candidate of a
  // table that admits all rows at once is left out.
  void SetRecord(RowList list, uint64_t id, ByteSpan record);
  // Forgets all rows and candidates, and what was removed up to so many updates of the table.
  void Clear(uint64_t updates);
  // Says how many updates the table counts.
  void set_updates(uint64_t updates) { updates_ = updates; }

  // The rows of a step as they are after it, which Take stores. They are made first, so that
  // nothing changes where one is not finite.
  struct Stepped {
    std::vector<uint64_t> ids;
    std::unique_ptr<float[]> records;
    std::vector<float*> stored;        // where each is stored; null: it is not yet
    size_t added = 0;                  // of `ids`: they are not stored yet
    std::vector<uint64_t> candidates;  // their gradients are dropped
    size_t added_candidates = 0;
    bool is_finite = true;
  };
  Stepped Step(RowSums* means, float learning_rate) const;
  // Stores the rows, counts an update of the table, and removes rows where it is time; returns how
  // many were removed. REQUIRES: is_finite; the table is as Step found it.
  size_t Take(const Stepped& stepped);
  // Counts a step that changes no row, so that all buckets of a table count alike; as Take.
  size_t CountSkipped() { return EndUpdate(); }

 private:
  // Writes the record of a row as it is; `stored` is null where it is not stored.
  void Load(uint64_t id, const float* stored, float* record) const;
  // Returns whether a row that is not stored is not admitted yet in this step, which is noted then.
  bool IsCandidate(uint64_t id, Stepped* stepped) const;
  // Writes the counters of a row that the table's next update, or a Set before that, changes.
  void StoreCounters(uint32_t row_updates, float* record) const;
  float* FindOrInsert(uint64_t id);
  // Returns the float of a record of a list at which its counters begin.
  size_t CountersAt(RowList list) const {
    return list == RowList::kRows ? width_ + moment_floats_ : 0;
  }
  const RowStore& StoreOf(RowList list) const;
  // Counts one more update that had a candidate's gradient.
  void CountCandidate(uint64_t id);
  void SetCandidate(uint64_t id, const RowCounters& counters);
  // Removes an id from a list, where it is there, and returns whether it was.
  bool EraseRow(uint64_t id);
  bool EraseCandidate(uint64_t id);
  // Keeps an id that was removed.
  void NoteRemoved(uint64_t id, const RowCounters& counters);
  void RemoveRow(uint64_t id);
  void RemoveCandidate(uint64_t id);
  // Returns the ids that a full cell of a list gives up.
  std::vector<uint64_t> Lowest(RowList list, std::span<const uint64_t> ids, size_t count) const;
  // Returns the ids of a list that no update of the last `ttl` has changed.
  std::vector<uint64_t> Outlived(RowList list) const;
  size_t EndUpdate();
  // Forgets the older half of the removed ids where there are more than that is of use.
  void ForgetRemoved();

  InitialValues initial_;
  const RowRule* rule_;
  size_t width_;
  size_t moment_floats_;
  std::unique_ptr<RowStore> store_;
  std::unique_ptr<RowStore> candidates_;
  std::unique_ptr<RowStore> removed_;
  // The first is there where the table is bounded and evicts, the second where it is bounded and
  // admits.
  std::optional<RowCells> row_cells_;
  std::optional<RowCells> candidate_cells_;
  uint64_t updates_ = 0;
  uint64_t complete_since_ = 0;
};

}  // namespace bdn

#endif  // BANDONEON_SERVER_ROWS_ROW_TABLE_H_
