#ifndef BANDONEON_WORKER_ROWS_ROWS_PUSH_H_
#define BANDONEON_WORKER_ROWS_ROWS_PUSH_H_

#include <cstdint>
#include <span>
#include <vector>

namespace bdn {

// The rows of one table in a push. Arrays are borrowed.
struct TableRows {
  uint32_t table = 0;  // its id, from Declare
  std::span<const uint64_t> ids;
  const float* gradients = nullptr;  // float32[ids.size()][width]; may hold an id more than once
  // The rows that come with the answer, as the step has left them.
  std::span<const uint64_t> wanted;
  float* out = nullptr;  // float32[wanted.size()][width]; unspecified until the ticket is done
};

// A step of some tables. All tables that share keys with these take part; those that are not named
// have no rows in it. Gradients are read before the call returns.
struct RowsPush {
  std::vector<TableRows> tables;
  float weight = 1.0f;      // of this worker's gradients in the mean
  float loss_scale = 1.0f;  // the gradients are divided by it
  float learning_rate = 0.0f;
  uint32_t program_steps = 0;  // as of PushRequest
  int32_t priority = 0;        // as of PushRequest
};

}  // namespace bdn

#endif  // BANDONEON_WORKER_ROWS_ROWS_PUSH_H_
