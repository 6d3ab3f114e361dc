#ifndef BANDONEON_SERVER_ROWS_ROW_STORE_H_
#define BANDONEON_SERVER_ROWS_ROW_STORE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>

namespace bdn {

// A map from ids to records, each of the same number of floats. Not thread-safe.
class RowStore {
 public:
  virtual ~RowStore() = default;

  // Returns a record, which stays where it is until it is removed. Null: there is none.
  virtual float* Find(uint64_t id) = 0;
  virtual const float* Find(uint64_t id) const = 0;
  // Finds many records, which takes less time than to find one after the other. REQUIRES:
  // records.size() == ids.size().
  virtual void FindAll(std::span<const uint64_t> ids, std::span<float*> records) = 0;
  // Adds a record, whose floats are not set. REQUIRES: there is none of this id.
  virtual float* Insert(uint64_t id) = 0;
  // Removes a record, and returns whether there was one.
  virtual bool Erase(uint64_t id) = 0;

  virtual size_t size() const = 0;
  // Returns about how many bytes of memory it takes.
  virtual size_t bytes() const = 0;
  // Returns the number of places. A record keeps its place until it is removed.
  virtual uint64_t places() const = 0;
  // Calls `visit` with the records from `place` on, in the order of their places, until it returns
  // false or `most` places were looked at. Returns the place behind the last that was; all were
  // where that is places(). `visit` must not change the store.
  virtual uint64_t Visit(
      uint64_t place, uint64_t most,
      const std::function<bool(uint64_t id, const float* record)>& visit) const = 0;
  virtual std::unique_ptr<RowStore> Clone() const = 0;
};

// Makes a store in memory, of records of `floats` floats.
std::unique_ptr<RowStore> MakeMemoryRowStore(size_t floats);

}  // namespace bdn

#endif  // BANDONEON_SERVER_ROWS_ROW_STORE_H_
