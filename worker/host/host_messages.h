#ifndef BANDONEON_WORKER_HOST_HOST_MESSAGES_H_
#define BANDONEON_WORKER_HOST_HOST_MESSAGES_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "compressors/codec.h"
#include "worker/client.h"
#include "worker/host/host_channel.h"
#include "worker/state_call.h"

// Conversions between the messages of proto/host.proto and the types that they stand for.

namespace bandoneon::host {
class Place;
class Presence;
class StateCall;
class StateCounters;
class Status;
}  // namespace bandoneon::host

namespace bdn {

inline constexpr uint32_t kHostVersion = 9;

void Write(const absl::Status& status, bandoneon::host::Status* message);
// Reads a status with its ErrorFields. An unknown code becomes Unknown.
absl::Status Read(const bandoneon::host::Status& message);

void Write(const HostPlace& place, bandoneon::host::Place* message);
HostPlace Read(const bandoneon::host::Place& message);

void Write(const StateCounters& counters, bandoneon::host::StateCounters* message);
StateCounters Read(const bandoneon::host::StateCounters& message);

void Write(const Presence& presence, bandoneon::host::Presence* message);
// Reads a presence as told to the worker of this rank, one of `joined`, which is present itself.
// InvalidArgument: nobody is present, there are not so many ranks from the first on, or the
// worker's own is below the first.
absl::StatusOr<Presence> Read(const bandoneon::host::Presence& message, Rank rank, int joined);

// Writes a call without the place of its data.
void Write(const StateCall& call, bandoneon::host::StateCall* message);
// Reads a call without its arrays; its tensors are borrowed from the message. InvalidArgument: a
// number names no kind or part, or the call is not about one tensor where it must be.
absl::StatusOr<StateCall> Read(const bandoneon::host::StateCall& message);

// Returns the codec of a spec, if gradients can be encoded by it inside a host. InvalidArgument
// lists those that can.
absl::StatusOr<std::shared_ptr<const Codec>> ParseHostCodec(const std::string& spec);

// The EncodeSegment functions of HostChannel for the two directions.
std::string EncodeSegmentToDaemon(uint32_t index, uint64_t bytes);
std::string EncodeSegmentToProcess(uint32_t index, uint64_t bytes);

}  // namespace bdn

#endif  // BANDONEON_WORKER_HOST_HOST_MESSAGES_H_
