#ifndef BANDONEON_WORKER_PIPELINE_DEVICE_STAGES_H_
#define BANDONEON_WORKER_PIPELINE_DEVICE_STAGES_H_

#include "absl/status/status.h"
#include "worker/pipeline/stages.h"

// The stages of an exchange whose tensor lies in a device's memory (Exchange::device): those of
// stages.h, with the same payloads and the same bits in tensor, residual and momentum; these lie in
// the device's memory, too. Each function blocks its thread until the device is done. Errors are
// those of CodecDevice; they name no tensor.

namespace bdn {

// Returns whether a device can carry out the key's exchanges: the key is one tensor's, has fewer
// than DeviceCodec::kMostElements, is not of float64 and has no replica, and its codecs have
// kernels.
bool RunsOnDevice(const DeclaredKey& key);

// Does the same as EncodePush, but watches no quality: no push asks to go uncompressed. REQUIRES:
// the segment has data, also where it is absent. ResourceExhausted: no value has changed, but
// residual and momentum may have moved, which BringHome reverses.
absl::Status EncodePushOnDevice(const EncodeContext& context, const DeclaredKey& key,
                                LinkMemory* memory, Exchange* exchange);
// Does the same as DecodeReply. ResourceExhausted: nothing has changed but the tensor, which
// DecodeReply overwrites, and a push that was taken back, which DecodeReply does not do again.
absl::Status DecodeReplyOnDevice(const DeclaredKey& key, const Frame& reply, LinkMemory* memory,
                                 Exchange* exchange);
// Does the same as UndoPush. ResourceExhausted: nothing has changed.
absl::Status UndoPushOnDevice(const DeclaredKey& key, LinkMemory* memory, Exchange* exchange);

// Moves residual and momentum, if there are any, from the device to the host. Afterwards the device
// holds nothing of them. After an error it still holds both.
absl::Status BringHome(LinkMemory* memory);
// StageOnHost turns the exchange into one of the host, with memory of the host for its tensor, to
// which the gradient is copied if there is one. DeliverStaged copies the result back to the device,
// if it is wanted and some worker had a gradient.
absl::Status StageOnHost(Exchange* exchange);
absl::Status DeliverStaged(Exchange* exchange);

}  // namespace bdn

#endif  // BANDONEON_WORKER_PIPELINE_DEVICE_STAGES_H_
