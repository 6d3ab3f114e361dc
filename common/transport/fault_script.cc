#include "common/transport/fault_script.h"

namespace bdn {

Fault FaultScript::Choose(const FrameHeader& header) {
  for (Rule& rule : rules_) {
    if (rule.times > 0 && rule.match(header)) {
      if (rule.times != kAlways) --rule.times;
      return rule.fault;
    }
  }
  if (chances_.drop + chances_.duplicate + chances_.corrupt <= 0) return Fault::kNone;
  const double chance = static_cast<double>(random_() >> 11) * 0x1p-53;
  if (chance < chances_.drop) return Fault::kDrop;
  if (chance < chances_.drop + chances_.duplicate) return Fault::kDuplicate;
  if (chance < chances_.drop + chances_.duplicate + chances_.corrupt) return Fault::kCorrupt;
  return Fault::kNone;
}

Buffer FaultScript::Corrupt(const Buffer& payload) {
  Buffer copy = Buffer::CopyOf(payload.span());
  copy.mutable_span()[random_() % payload.size()] ^= std::byte{1};
  return copy;
}

}  // namespace bdn
