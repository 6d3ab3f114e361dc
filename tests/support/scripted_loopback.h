#ifndef BANDONEON_TESTS_SUPPORT_SCRIPTED_LOOPBACK_H_
#define BANDONEON_TESTS_SUPPORT_SCRIPTED_LOOPBACK_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "common/transport/loopback_core.h"
#include "common/transport/transport.h"
#include "common/wire/frame.h"
#include "tests/support/fault_script.h"

namespace bdn {

// A network in one process, without a thread: transports that reach each other by
// "loopback://name". Its events (a frame's delivery, a send's completion) wait in one queue until
// somebody steps. The caller of a step runs the callbacks, on its own thread. Payloads are shared,
// never copied.
//
// Faults are scripted: each frame is matched, when it is sent, against the rules in the order in
// which they were made, and the first that matches decides. A test reads
//   net.Drop(OfType(FrameType::kReply), 1);
//   worker.Push(...);
//   net.DeliverAll();
//
// Thread-safe. Outlives its transports. A transport's Join runs its own outstanding SendDones on
// the calling thread; frames that it sent before Close are still delivered.
class ScriptedLoopback final {
 public:
  // Pure, and must not call back into the network.
  using Match = FaultScript::Match;
  static constexpr int kAlways = FaultScript::kAlways;

  ScriptedLoopback() = default;
  ScriptedLoopback(const ScriptedLoopback&) = delete;
  ScriptedLoopback& operator=(const ScriptedLoopback&) = delete;

  std::unique_ptr<Transport> MakeTransport();

  // ---- Delivery ----

  // Runs the next event (the oldest; any, when reordering). False when there was none.
  bool Step();
  // Delivers the oldest pending frame that matches, out of turn. False when there was none.
  bool StepFrame(const Match& match);
  // Steps until nothing is pending, at most `most` times; returns how often.
  size_t DeliverAll(size_t most = 1'000'000);
  size_t num_pending() const;
  // Frames on their way, oldest first; not those that are held.
  std::vector<FrameHeader> PendingFrames() const;

  // For a thread that pumps: waits for an event and runs it; false once Interrupt was called.
  bool WaitAndStep();
  void Interrupt();

  // ---- Faults: for the next `times` frames that match ----

  void Drop(Match match, int times = kAlways);
  void Duplicate(Match match, int times = kAlways);
  // Keeps the frame back until Release; its SendDone is not kept back.
  void Hold(Match match, int times = kAlways);
  // Flips one bit of a payload (a copy of it); an empty one passes.
  void CorruptPayload(Match match, int times = kAlways);
  // Cuts the frame's connection: the frame and all that follow end in Unavailable, both ways.
  void Cut(Match match, int times = kAlways);
  // Puts the held frames at the end of the queue; returns how many.
  size_t Release();
  // Forgets all rules and random faults. Held frames stay held.
  void ClearFaults();

  // For frames that no rule matched. With `reorder` Step picks any pending event.
  using RandomFaults = FaultScript::Chances;
  // From now on, and the same for the same seed and calls.
  void Randomize(uint64_t seed, const RandomFaults& faults);

 private:
  FaultScript script_;
  LoopbackCore core_{&script_};
};

// ---- Matches ----

inline ScriptedLoopback::Match AnyFrame() {
  return [](const FrameHeader&) { return true; };
}
inline ScriptedLoopback::Match OfType(FrameType type) {
  return [type](const FrameHeader& header) { return header.type == type; };
}
inline ScriptedLoopback::Match FromNode(NodeId node) {
  return [node](const FrameHeader& header) { return header.sender == node; };
}
inline ScriptedLoopback::Match OfKey(Key key) {
  return [key](const FrameHeader& header) { return header.key == key; };
}
inline ScriptedLoopback::Match OfStep(Step step) {
  return [step](const FrameHeader& header) { return header.step == step; };
}
inline ScriptedLoopback::Match Both(ScriptedLoopback::Match a, ScriptedLoopback::Match b) {
  return [a = std::move(a), b = std::move(b)](const FrameHeader& header) {
    return a(header) && b(header);
  };
}

}  // namespace bdn

#endif  // BANDONEON_TESTS_SUPPORT_SCRIPTED_LOOPBACK_H_
