#include "common/transport/fabric/fabric_session.h"

namespace bdn {

std::optional<uint32_t> FabricNumbers::Take(FabricSession* session) {
  // Until 64 free numbers wait, new ones are preferred. So a number comes back late, and a late
  // write of its old session finds it unused or of another generation.
  uint32_t window;
  if (entries_.size() < kMostFabricWindows && free_.size() < kFabricGenerations) {
    window = static_cast<uint32_t>(entries_.size());
    entries_.emplace_back();
  } else if (!free_.empty()) {
    window = free_.front();
    free_.pop_front();
  } else {
    return std::nullopt;
  }
  Entry& entry = entries_[window];
  entry.session = session;
  return FabricImmediate{window, entry.generation, 0}.Encode();
}

void FabricNumbers::Give(uint32_t immediate) {
  const FabricImmediate bits = FabricImmediate::Decode(immediate);
  Entry& entry = entries_[bits.window];
  entry.session = nullptr;
  entry.generation = (entry.generation + 1) % kFabricGenerations;
  free_.push_back(bits.window);
}

FabricSession* FabricNumbers::Find(uint32_t number) const {
  if (number > FabricNumber(UINT32_MAX)) return nullptr;
  const FabricImmediate bits = FabricImmediate::Decode(number << 14);
  if (bits.window >= entries_.size()) return nullptr;
  const Entry& entry = entries_[bits.window];
  return entry.generation == bits.generation ? entry.session : nullptr;
}

}  // namespace bdn
