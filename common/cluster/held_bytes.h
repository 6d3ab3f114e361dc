#ifndef BANDONEON_COMMON_CLUSTER_HELD_BYTES_H_
#define BANDONEON_COMMON_CLUSTER_HELD_BYTES_H_

#include <cstdint>

namespace bdn {

// The bytes that the keys of a server hold in their arrays and payloads, by purpose.
struct HeldBytes {
  uint64_t weights = 0;
  uint64_t replicas = 0;
  uint64_t moments = 0;
  uint64_t residuals = 0;  // of the replies' error feedback
  uint64_t sums = 0;       // of open rounds
  uint64_t waiting = 0;    // pushes that are not added yet
  // Kept until the next step closes; replies that are the weights are not counted.
  uint64_t replies = 0;
  uint64_t values = 0;  // of broadcasts
  uint64_t rows = 0;    // of tables: the rows that they hold, with their moments

  uint64_t total() const {
    return weights + replicas + moments + residuals + sums + waiting + replies + values + rows;
  }
  HeldBytes& operator+=(const HeldBytes& other);
  HeldBytes& operator-=(const HeldBytes& other);
  bool operator==(const HeldBytes&) const = default;
};

}  // namespace bdn

#endif  // BANDONEON_COMMON_CLUSTER_HELD_BYTES_H_
