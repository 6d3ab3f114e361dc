#include "common/cluster/held_bytes.h"

namespace bdn {
namespace {

// The listed members; the assertion below notices a member that is missing here.
constexpr uint64_t HeldBytes::*kPurposes[] = {
    &HeldBytes::weights,   &HeldBytes::replicas, &HeldBytes::moments,
    &HeldBytes::residuals, &HeldBytes::sums,     &HeldBytes::waiting,
    &HeldBytes::replies,   &HeldBytes::values,   &HeldBytes::rows};
static_assert(sizeof(HeldBytes) == sizeof(kPurposes) / sizeof(kPurposes[0]) * sizeof(uint64_t));

}  // namespace

HeldBytes& HeldBytes::operator+=(const HeldBytes& other) {
  for (const auto purpose : kPurposes) this->*purpose += other.*purpose;
  return *this;
}

HeldBytes& HeldBytes::operator-=(const HeldBytes& other) {
  for (const auto purpose : kPurposes) this->*purpose -= other.*purpose;
  return *this;
}

}  // namespace bdn
