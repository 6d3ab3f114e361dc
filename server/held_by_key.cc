#include "server/held_by_key.h"

#include <vector>

namespace bdn {
namespace {

uint64_t BytesOf(const std::vector<float>& array) { return array.capacity() * sizeof(float); }

}  // namespace

HeldBytes HeldBy(const KeyState& state) {
  const StateParts& parts = state.dense.parts;
  const Buffer& reply = state.dense.last_reply.payload;
  const Buffer& weights = parts.weights.bytes();
  // A reply of whole weights shares their block, which must not count twice.
  const bool is_weights = !weights.empty() && reply.data() == weights.data();
  return {.weights = weights.size(),
          .replicas = BytesOf(parts.replica),
          .moments = BytesOf(parts.moments),
          .residuals = BytesOf(parts.residual),
          .sums = state.dense.round.sum_bytes(),
          .waiting = state.dense.round.payload_bytes() + state.rows.round.bytes() +
                     state.rows.reply_bytes(),
          .replies = is_weights ? 0 : reply.size(),
          .values = state.broadcast.value.bytes.size() + state.broadcast.next.bytes.size(),
          .rows = state.rows.row_bytes()};
}

}  // namespace bdn
