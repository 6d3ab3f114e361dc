#ifndef BANDONEON_COMMON_BASE_IDS_H_
#define BANDONEON_COMMON_BASE_IDS_H_

#include <compare>
#include <cstdint>
#include <functional>
#include <string>

#include "absl/strings/str_format.h"

namespace bdn {

// The number of a node, given by the scheduler at Join and never reused in a job. 0 is no node.
using NodeId = uint32_t;
// The number of a node among those of its role, from 0. A replacement has a new node id and may
// take an old rank.
using Rank = int32_t;
// The number of a step of a key: rises with every exchange, need not be contiguous. 0 is before the
// first.
using Step = uint64_t;
// No step is greater, so that sums of steps do not overflow.
inline constexpr Step kMaxStep = Step{1} << 62;
// The version of the membership.
using Epoch = uint32_t;

// The role of a process in a job. The values are on the wire: never renumber.
enum class Role : uint8_t { kScheduler = 0, kServer = 1, kWorker = 2 };

inline const char* RoleName(Role role) {
  switch (role) {
    case Role::kScheduler:
      return "scheduler";
    case Role::kServer:
      return "server";
    case Role::kWorker:
      return "worker";
  }
  return "unknown role";
}

// The number of one partition of a tensor, or of one fused group of small tensors: the tensor
// number (high 32 bits) and the partition number (low 32 bits). A group carries the number of its
// first tensor.
struct Key {
  uint64_t value = 0;

  static constexpr Key Of(uint32_t tensor, uint32_t partition) {
    return Key{(uint64_t{tensor} << 32) | partition};
  }
  constexpr uint32_t tensor() const { return static_cast<uint32_t>(value >> 32); }
  constexpr uint32_t partition() const { return static_cast<uint32_t>(value); }
  std::string ToString() const { return absl::StrFormat("%d.%d", tensor(), partition()); }

  auto operator<=>(const Key&) const = default;
  template <typename H>
  friend H AbslHashValue(H h, const Key& key) {
    return H::combine(std::move(h), key.value);
  }
};

}  // namespace bdn

#endif  // BANDONEON_COMMON_BASE_IDS_H_
