#ifndef BANDONEON_SERVER_ROWS_ROW_TABLE_H_
#define BANDONEON_SERVER_ROWS_ROW_TABLE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "common/base/bytes.h"
#include "common/wire/row_records.h"
#include "server/rows/initial_row.h"
#include "server/rows/row_rule.h"
#include "server/rows/row_store.h"

namespace bdn {

// The sum of a step's gradients of one table, row by row, beginning with +0.0. Not thread-safe.
class RowSums {
 public:
  explicit RowSums(size_t width) : width_(width) {}

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
// stored: it has its initial value, so that reading costs no memory. A value; not thread-safe.
class RowTable {
 public:
  // `rule` is borrowed.
  RowTable(const InitialValues& initial, const RowRule* rule, size_t width, size_t moment_floats);
  RowTable(const RowTable& other);
  RowTable& operator=(const RowTable& other) { return *this = RowTable(other); }
  RowTable(RowTable&&) = default;
  RowTable& operator=(RowTable&&) = default;

  size_t rows() const { return store_->size(); }
  size_t bytes() const { return store_->bytes(); }
  // Returns the bytes of a stored row, about.
  size_t row_bytes() const;
  uint64_t updates() const { return updates_; }

  // Writes a row's value.
  void Read(uint64_t id, std::span<float> row) const;
  // Returns how many of the rows are not stored yet.
  size_t CountNew(std::span<const uint64_t> ids) const;
  // Sets a row's value; its moments become those of a row that was never updated.
  void Set(uint64_t id, std::span<const float> row);

  // Returns the bytes of a record: all that is kept of a row (common/wire/row_records.h).
  size_t record_bytes() const { return RecordBytes(width_, moment_floats_); }
  // Returns the number of places that Scan may begin at.
  uint64_t places() const { return store_->places(); }
  // Collects up to `most` records that were changed after `since` updates of the table, from a
  // place on. It looks at so many places at most that a shard is not held up, so that there may be
  // none of them before the end.
  struct Scanned {
    std::vector<std::pair<uint64_t, const float*>> records;  // ids rising; as of RowStore::Find
    uint64_t next = 0;                                       // the place to go on at; 0: the end
  };
  Scanned Scan(uint64_t place, uint64_t since, size_t most) const;
  // Checks a record of a row. InvalidArgument says what is wrong. REQUIRES: it has record_bytes().
  absl::Status CheckRecord(ByteSpan record, uint64_t updates) const;
  // Sets a record that was checked.
  void SetRecord(uint64_t id, ByteSpan record);
  // Forgets all rows.
  void Clear();
  // Says how many updates the table counts.
  void set_updates(uint64_t updates) { updates_ = updates; }

  // The rows of a step as they are after it, which Take stores. They are made first, so that
  // nothing changes where one is not finite.
  struct Stepped {
    std::vector<uint64_t> ids;
    std::vector<float> records;
    bool is_finite = true;
  };
  Stepped Step(RowSums* means, float learning_rate) const;
  // Stores the rows, and counts an update of the table. REQUIRES: is_finite.
  void Take(const Stepped& stepped);
  // Counts a step that changes no row, so that all buckets of a table count alike.
  void CountSkipped() { ++updates_; }

 private:
  // Writes the record of a row as it is, stored or not.
  void Load(uint64_t id, float* record) const;
  // Writes the counters of a row that the table's next update, or a Set before that, changes.
  void StoreCounters(uint32_t row_updates, float* record) const;
  float* FindOrInsert(uint64_t id);

  InitialValues initial_;
  const RowRule* rule_;
  size_t width_;
  size_t moment_floats_;
  std::unique_ptr<RowStore> store_;
  uint64_t updates_ = 0;
};

}  // namespace bdn

#endif  // BANDONEON_SERVER_ROWS_ROW_TABLE_H_
