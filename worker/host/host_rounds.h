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

// One push of a process of a host.
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
  ConstView data;  // null if the push is absent or encoded
  // Encodes `payload`, as in PushSource; null: the push is not encoded.
  const Codec* codec = nullptr;
  ByteSpan payload;
  std::shared_ptr<SharedMemory> memory;  // keeps the memory of data or payload
};

// The pushes of one tensor in one step by all processes of a host, by local rank.
struct HostRound {
  uint32_t tensor = 0;
  Step step = 0;
  std::vector<std::optional<HostPush>> pushes;

  // OK: the pushes fit together. InvalidArgument names two processes that do not agree. `first` is
  // the rank of the host's first process.
  absl::Status CheckAgrees(const std::string& name, Rank first) const;
  // Returns "worker 4: weight 1, learning rate 0.1; worker 5: ...", for the first eight pushes.
  std::string Describe(Rank first) const;
  bool wants_left_out() const;
  // Returns the push of the whole host: the sum of the pushes that are not absent, in the order of
  // local ranks, with the weight of all, absent ones included. The caller sets the places of `data`
  // and of what is left out.
  PushRequest Request() const;
  // Returns this process's share of what the host's codec leaves out, which is its share of the
  // weight.
  float ShareOf(int process) const;
};

// A table of the open pushes of a host's processes. Each tensor's steps are exchanged one after the
// other, each when all processes have pushed it. A state machine; not thread-safe.
class HostRounds {
 public:
  // `first` is the rank of the host's first process, by which errors name processes.
  HostRounds(int processes, Rank first) : processes_(processes), first_(first) {}

  // Adds a push of a process, and returns the round if it is complete. InvalidArgument: it does not
  // fit the others' pushes; then nothing has changed, and the job cannot go on. Aborted: another
  // process is leaving and will not push it.
  absl::StatusOr<std::optional<HostRound>> Add(int process, uint32_t tensor,
                                               const std::string& name, HostPush push);
  // Makes the step of a complete round that is not exchanged the tensor's next step again. Returns
  // false if a process has already pushed the one after it.
  bool TakeBack(const HostRound& round);
  // Sets the tensor's step for all processes. InvalidArgument: the tensor is past that step, or it
  // is too large. FailedPrecondition: a process has pushed the next step.
  absl::Status SetStep(uint32_t tensor, Step step);
  Step step(uint32_t tensor) const;

  // Returns the processes that have not pushed to the tensor's open round, rising; empty if none is
  // open.
  std::vector<int> Missing(uint32_t tensor) const;
  bool IsOpen(uint32_t tensor) const { return open_.contains(tensor); }

  // Notes that a process pushes no more. Removes and returns the open rounds that wait for it.
  std::vector<HostRound> OnLeaving(int process);
  // Forgets a tensor. Returns its open round, if there is one, which is over.
  std::optional<HostRound> Forget(uint32_t tensor);
  // Removes and returns all open rounds.
  std::vector<HostRound> TakeAll();

 private:
  absl::Status Check(int process, const std::string& name, Step next, const HostPush& push,
                     const HostRound* round) const;
  // Returns the program's position, as the round's lowest rank that knows it has told it.
  ProgramPlace PlaceOf(const HostRound& round) const;

  const int processes_;
  const Rank first_;
  std::set<int> leaving_;
  absl::flat_hash_map<uint32_t, HostRound> open_;  // by tensor
  absl::flat_hash_map<uint32_t, Step> steps_;  // by tensor: the last step whose round was complete
};

}  // namespace bdn

#endif  // BANDONEON_WORKER_HOST_HOST_ROUNDS_H_
