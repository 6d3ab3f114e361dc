#ifndef BANDONEON_SERVER_ROWS_ROW_STORE_H_
#define BANDONEON_SERVER_ROWS_ROW_STORE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/container/flat_hash_map.h"

namespace bdn {

// A map from ids to records, each of the same number of floats. Not thread-safe.
class RowStore {
 public:
  virtual ~RowStore() = default;

  // Returns a record, which stays where it is until the next call that is not const. Null: there is
  // none.
  virtual float* Find(uint64_t id) = 0;
  virtual const float* Find(uint64_t id) const = 0;
  // Adds a record, whose floats are not set. REQUIRES: there is none of this id.
  virtual float* Insert(uint64_t id) = 0;
  // Removes a record, and returns whether there was one.
  virtual bool Erase(uint64_t id) = 0;

  virtual size_t size() const = 0;
  // Returns about how many bytes of memory it takes.
  virtual size_t bytes() const = 0;
  // Calls `visit` with each record, in no order. `visit` must not change the store.
  virtual void ForEach(
      const std::function<void(uint64_t id, const float* record)>& visit) const = 0;
  virtual std::unique_ptr<RowStore> Clone() const = 0;
};

// Makes a store in memory, of records of `floats` floats.
std::unique_ptr<RowStore> MakeMemoryRowStore(size_t floats);

}  // namespace bdn

#endif  // BANDONEON_SERVER_ROWS_ROW_STORE_H_
