#include "tests/support/fault_script.h"

namespace bdn {

LoopbackFaults::Fate FaultScript::Decide(Frame* frame) {
  MutexLock lock(&mu_);
  switch (Choose(frame->header)) {
    case Fault::kNone:
      return Fate::kDeliver;
    case Fault::kDrop:
      return Fate::kDrop;
    case Fault::kDuplicate:
      return Fate::kDuplicate;
    case Fault::kHold:
      return Fate::kHold;
    case Fault::kCut:
      return Fate::kCut;
    case Fault::kCorrupt:
      if (!frame->payload.empty()) frame->payload = Corrupt(frame->payload);
      return Fate::kDeliver;
  }
  return Fate::kDeliver;
}

size_t FaultScript::ChooseNext(size_t size) {
  MutexLock lock(&mu_);
  return chances_.reorder ? random_() % size : 0;
}

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
