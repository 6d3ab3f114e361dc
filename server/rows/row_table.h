#ifndef BANDONEON_SERVER_ROWS_ROW_TABLE_H_
#define BANDONEON_SERVER_ROWS_ROW_TABLE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
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
  const std::vector<uint64_t>& ids() const { return ids_; }
  std::span<float> at(size_t i) { return {sums_.data() + i * width_, width_}; }
  // Multiplies all sums. Returns false if one of them is not finite then.
  bool Scale(float factor);

 private:
  const size_t width_;
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

 private:
  // Writes the record of a row as it is, stored or not.
  void Load(uint64_t id, float* record) const;
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
