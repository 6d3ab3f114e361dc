#ifndef BANDONEON_WORKER_HOST_HOST_ROUNDS_H_
#define BANDONEON_WORKER_HOST_HOST_ROUNDS_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/transport/shm/shared_memory.h"
#include "common/wire/program_steps.h"
#include "worker/client.h"

namespace bdn {

// What one process of a host pushes.
struct HostPush {
  uint64_t ticket = 0;  // the process's number for it
  Step step = 0;
  bool absent = false;
  int32_t priority = 0;
  float weight = 1.0f;
  float loss_scale = 1.0f;
  float learning_rate = 0.0f;
  uint32_t program_steps = 0;
  bool wants_left_out = false;
  ConstView data;                // null where absent, or encoded
  const Codec* codec = nullptr;  // as PushSource has it
  ByteSpan payload;
  std::shared_ptr<SharedMemory> memory;  // that data lies in
};

// What all processes of a host have pushed of one tensor in one step, by local rank.
struct HostRound {
  uint32_t tensor = 0;
  Step step = 0;
  std::vector<std::optional<HostPush>> pushes;

  // OK if what they say of the push fits together. InvalidArgument names two that do not agree, by their
  // ranks, of which the host's first is `first`.
  absl::Status CheckAgrees(const std::string& name, Rank first) const;
  // "worker 4: weight 1, learning rate 0.1; worker 5: ...": the first eight of them.
  std::string Describe(Rank first) const;
  bool wants_left_out() const;
  // What the host pushes for all: the sum of those that are present, in the order of local ranks, with
  // the weight of all, absent ones included. Where `data` and what is left out go is the caller's to say.
  PushRequest Request() const;
  // Of what the host's codec leaves out, the part that is of this process: as its weight is of all.
  float ShareOf(int process) const;
};

// The open pushes of a host's processes. Each tensor's steps are exchanged one after the other, each when
// all processes have pushed it. A state machine; not thread-safe.
class HostRounds {
 public:
  // Names processes by their ranks, of which the host's first is `first`.
  HostRounds(int processes, Rank first) : processes_(processes), first_(first) {}

  // A process pushes; the round, where it is complete. InvalidArgument: it does not fit what others have
  // pushed; then nothing has changed, and the job cannot go on. Aborted: another is leaving and will not
  // push it.
  absl::StatusOr<std::optional<HostRound>> Add(int process, uint32_t tensor,
                                               const std::string& name, HostPush push);
  // The round, which was complete, is not exchanged: its step is the tensor's next again. False where
  // somebody has pushed the next already.
  bool TakeBack(const HostRound& round);
  // The tensor stands at this step from now on, for all processes. InvalidArgument: it is past that, or
  // that is none. FailedPrecondition: some have pushed the next.
  absl::Status SetStep(uint32_t tensor, Step step);
  Step step(uint32_t tensor) const;

  // Who has not pushed the tensor's open round, rising; nobody where none is open.
  std::vector<int> Missing(uint32_t tensor) const;
  bool IsOpen(uint32_t tensor) const { return open_.contains(tensor); }

  // This process pushes no more: the open rounds that wait for it, which are over.
  std::vector<HostRound> OnLeaving(int process);
  // The tensor is no more: its open round, which is over.
  std::optional<HostRound> Forget(uint32_t tensor);
  // All open rounds, which are over.
  std::vector<HostRound> TakeAll();

 private:
  absl::Status Check(int process, const std::string& name, Step next, const HostPush& push,
                     const HostRound* round) const;
  // Of the round's lowest rank that knows it.
  ProgramPlace PlaceOf(const HostRound& round) const;

  const int processes_;
  const Rank first_;
  std::set<int> leaving_;
  absl::flat_hash_map<uint32_t, HostRound> open_;  // by tensor
  absl::flat_hash_map<uint32_t, Step> steps_;      // by tensor: the last that was complete
};

}  // namespace bdn

#endif  // BANDONEON_WORKER_HOST_HOST_ROUNDS_H_
