#include "server/held_bytes.h"

#include <vector>

namespace bdn {
namespace {

constexpr uint64_t HeldBytes::*kPurposes[] = {
    &HeldBytes::weights, &HeldBytes::replicas, &HeldBytes::moments, &HeldBytes::residuals,
    &HeldBytes::sums,    &HeldBytes::waiting,  &HeldBytes::replies, &HeldBytes::values};
static_assert(sizeof(HeldBytes) == sizeof(kPurposes) / sizeof(kPurposes[0]) * sizeof(uint64_t));

uint64_t BytesOf(const std::vector<float>& array) { return array.capacity() * sizeof(float); }

}  // namespace

HeldBytes& HeldBytes::operator+=(const HeldBytes& other) {
  for (const auto purpose : kPurposes) this->*purpose += other.*purpose;
  return *this;
}

HeldBytes& HeldBytes::operator-=(const HeldBytes& other) {
  for (const auto purpose : kPurposes) this->*purpose -= other.*purpose;
  return *this;
}

HeldBytes HeldBy(const KeyState& state) {
  const StateParts& parts = state.dense.parts;
  const Buffer& reply = state.dense.last_reply.payload;
  const Buffer& weights = parts.weights.bytes();
  const bool is_weights = !weights.empty() && reply.data() == weights.data();
  return {.weights = weights.size(),
          .replicas = BytesOf(parts.replica),
          .moments = BytesOf(parts.moments),
          .residuals = BytesOf(parts.residual),
          .sums = state.dense.round.sum_bytes(),
          .waiting = state.dense.round.payload_bytes(),
          .replies = is_weights ? 0 : reply.size(),
          .values = state.broadcast.value.bytes.size() + state.broadcast.next.bytes.size()};
}

}  // namespace bdn
