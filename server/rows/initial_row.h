#ifndef BANDONEON_SERVER_ROWS_INITIAL_ROW_H_
#define BANDONEON_SERVER_ROWS_INITIAL_ROW_H_

#include <cstdint>
#include <span>

#include "common/cluster/table_spec.h"

namespace bdn {

// The identity of a table's first values: the same in all jobs of one seed.
struct InitialValues {
  TableSpec spec;
  uint64_t run_seed = 0;
  uint64_t name_hash = 0;  // of the table's name
};

// Writes the value that a row has before its first update. With u a uniform number from 0 to below
// 1, of 24 bits, uniform is value * (2 u - 1), and normal is value * (the sum of 12 u - 6): no
// transcendental function, so that all machines have the same bits. A function of the arguments
// alone.
void WriteInitialRow(const InitialValues& of, uint64_t id, std::span<float> row);

}  // namespace bdn

#endif  // BANDONEON_SERVER_ROWS_INITIAL_ROW_H_
