#include "tests/support/scripted_loopback.h"

#include <utility>

namespace bdn {

std::unique_ptr<Transport> ScriptedLoopback::MakeTransport() { return core_.MakeTransport(); }

bool ScriptedLoopback::Step() { return core_.Step(); }
bool ScriptedLoopback::StepFrame(const Match& match) { return core_.StepFrame(match); }
size_t ScriptedLoopback::DeliverAll(size_t most) {
  size_t steps = 0;
  while (steps < most && core_.Step()) ++steps;
  return steps;
}
size_t ScriptedLoopback::num_pending() const { return core_.num_pending(); }
std::vector<FrameHeader> ScriptedLoopback::PendingFrames() const { return core_.PendingFrames(); }
bool ScriptedLoopback::WaitAndStep() { return core_.WaitAndStep(); }
void ScriptedLoopback::Interrupt() { core_.Interrupt(); }

void ScriptedLoopback::Drop(Match match, int times) {
  script_.Add(std::move(match), Fault::kDrop, times);
}
void ScriptedLoopback::Duplicate(Match match, int times) {
  script_.Add(std::move(match), Fault::kDuplicate, times);
}
void ScriptedLoopback::Hold(Match match, int times) {
  script_.Add(std::move(match), Fault::kHold, times);
}
void ScriptedLoopback::CorruptPayload(Match match, int times) {
  script_.Add(std::move(match), Fault::kCorrupt, times);
}
void ScriptedLoopback::Cut(Match match, int times) {
  script_.Add(std::move(match), Fault::kCut, times);
}
size_t ScriptedLoopback::Release() { return core_.Release(); }
void ScriptedLoopback::ClearFaults() { script_.Clear(); }
void ScriptedLoopback::Randomize(uint64_t seed, const RandomFaults& faults) {
  script_.Randomize(seed, faults);
}

}  // namespace bdn
