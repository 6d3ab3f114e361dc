#ifndef BANDONEON_WORKER_PIPELINE_DEVICE_STAGES_H_
#define BANDONEON_WORKER_PIPELINE_DEVICE_STAGES_H_

#include "absl/status/status.h"
#include "worker/pipeline/stages.h"

// The stages of an exchange whose tensor lies in a device's memory (Exchange::device): those of stages.h,
// with the same payloads and the same bits in tensor and memory, which lies there as well. Each waits for
// the device, on the thread that calls. Errors as of CodecDevice; they name no tensor.

namespace bdn {

// Whether exchanges of the key can: it is one tensor's, without a replica, and its codecs have kernels.
bool RunsOnDevice(const DeclaredKey& key);

// As EncodePush. ResourceExhausted: nothing has changed.
absl::Status EncodePushOnDevice(const EncodeContext& context, const DeclaredKey& key,
                                LinkMemory* memory, Exchange* exchange);
// As DecodeReply. ResourceExhausted: nothing has changed but the tensor, which DecodeReply overwrites.
absl::Status DecodeReplyOnDevice(const DeclaredKey& key, const Frame& reply, LinkMemory* memory,
                                 Exchange* exchange);
// As UndoPush. ResourceExhausted: nothing has changed.
absl::Status UndoPushOnDevice(const DeclaredKey& key, LinkMemory* memory, Exchange* exchange);

// Residual and momentum, where there are any, from the device to the host: nothing of them is there
// afterwards.
absl::Status BringHome(LinkMemory* memory);
// The exchange becomes one of the host: its tensor is copied to memory of its own, and DeliverStaged
// copies the result back.
absl::Status StageOnHost(Exchange* exchange);
absl::Status DeliverStaged(Exchange* exchange);

}  // namespace bdn

#endif  // BANDONEON_WORKER_PIPELINE_DEVICE_STAGES_H_
