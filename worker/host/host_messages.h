#ifndef BANDONEON_WORKER_HOST_HOST_MESSAGES_H_
#define BANDONEON_WORKER_HOST_HOST_MESSAGES_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "compressors/codec.h"
#include "worker/host/host_channel.h"
#include "worker/state_call.h"

// Between proto/host.proto and what it stands for.

namespace bandoneon::host {
class Place;
class StateCall;
class StateCounters;
class Status;
}  // namespace bandoneon::host

namespace bdn {

inline constexpr uint32_t kHostVersion = 5;

void Write(const absl::Status& status, bandoneon::host::Status* message);
// With the facts that travel with it. A code that is none becomes Unknown.
absl::Status Read(const bandoneon::host::Status& message);

void Write(const HostPlace& place, bandoneon::host::Place* message);
HostPlace Read(const bandoneon::host::Place& message);

void Write(const StateCounters& counters, bandoneon::host::StateCounters* message);
StateCounters Read(const bandoneon::host::StateCounters& message);

// Writes a call without the place of its data.
void Write(const StateCall& call, bandoneon::host::StateCall* message);
// Reads a call without its arrays; its tensors are borrowed from the message. InvalidArgument: a
// number of it names nothing, or it is not about one tensor where it should be.
absl::StatusOr<StateCall> Read(const bandoneon::host::StateCall& message);

// The codec of a spec, if gradients can go by it inside a host. InvalidArgument says which can.
absl::StatusOr<std::shared_ptr<const Codec>> ParseHostCodec(const std::string& spec);

// Of HostChannel, for each direction.
std::string EncodeSegmentToDaemon(uint32_t index, uint64_t bytes);
std::string EncodeSegmentToProcess(uint32_t index, uint64_t bytes);

}  // namespace bdn

#endif  // BANDONEON_WORKER_HOST_HOST_MESSAGES_H_
