#ifndef BANDONEON_WORKER_PIPELINE_DEVICE_STAGES_H_
#define BANDONEON_WORKER_PIPELINE_DEVICE_STAGES_H_

#include "absl/status/status.h"
#include "worker/pipeline/stages.h"

// The stages of an exchange whose tensor lies in a device's memory (Exchange::device): those of
// stages.h, with the same payloads and the same bits in tensor, residual and momentum; these lie in
// the device's memory, too. Each function blocks its thread until the device is done. Errors are
// those of CodecDevice; they name no tensor.

namespace bdn {

// Returns whether a device can carry out the key's exchanges: the key is one tensor's, without a
// replica, and its codecs have kernels.
bool RunsOnDevice(const DeclaredKey& key);

// Does the same as EncodePush. ResourceExhausted: nothing has changed.
absl::Status EncodePushOnDevice(const EncodeContext& context, const DeclaredKey& key,
                                LinkMemory* memory, Exchange* exchange);
// Does the same as DecodeReply. ResourceExhausted: nothing has changed but the tensor, which
// DecodeReply overwrites.
absl::Status DecodeReplyOnDevice(const DeclaredKey& key, const Frame& reply, LinkMemory* memory,
                                 Exchange* exchange);
// Does the same as UndoPush. ResourceExhausted: nothing has changed.
absl::Status UndoPushOnDevice(const DeclaredKey& key, LinkMemory* memory, Exchange* exchange);

// Moves residual and momentum, if there are any, from the device to the host. Afterwards the device
// holds nothing of them.
absl::Status BringHome(LinkMemory* memory);
// StageOnHost turns the exchange into one of the host: its tensor is copied to the host's memory.
// DeliverStaged copies the result back to the device.
absl::Status StageOnHost(Exchange* exchange);
absl::Status DeliverStaged(Exchange* exchange);

}  // namespace bdn

#endif  // BANDONEON_WORKER_PIPELINE_DEVICE_STAGES_H_
