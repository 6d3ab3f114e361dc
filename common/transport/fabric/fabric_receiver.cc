#include "common/transport/fabric/fabric_receiver.h"

#include <utility>

#include "common/base/status.h"

namespace bdn {
namespace {

constexpr size_t kAlignment = 64;

}  // namespace

absl::StatusOr<std::unique_ptr<FabricReceiver>> FabricReceiver::Make(
    FabricEndpoint* endpoint, size_t message_bytes, std::shared_ptr<RetiredAddresses> retired,
    TransportCounter* copied) {
  std::unique_ptr<FabricReceiver> receiver(new FabricReceiver(endpoint, message_bytes));
  receiver->copied_ = copied;
  receiver->stride_ = (message_bytes + kAlignment - 1) / kAlignment * kAlignment;
  BDN_ASSIGN_OR_RETURN(receiver->shared_->memory,
                       FabricMemory::Make(kBuffers * receiver->stride_, std::move(retired)));
  BDN_ASSIGN_OR_RETURN(receiver->region_,
                       endpoint->Register(receiver->shared_->memory->span(), false));
  {
    MutexLock lock(&receiver->shared_->mu);
    for (size_t i = 0; i < kBuffers; ++i) {
      receiver->operations_[i].is_receive = true;
      receiver->operations_[i].index = i;
      receiver->shared_->free.push_back(i);
    }
  }
  BDN_RETURN_IF_ERROR(receiver->PostFree());
  return receiver;
}

FabricReceiver::~FabricReceiver() = default;

absl::Status FabricReceiver::PostFree() {
  // Taken out of the list at once: the lock is not held in calls of the provider, which may be
  // long, while other threads end lent payloads.
  std::vector<size_t> free;
  {
    MutexLock lock(&shared_->mu);
    free.swap(shared_->free);
  }
  while (!free.empty()) {
    const size_t index = free.back();
    absl::Status posted = endpoint_->Receive({BufferAt(index), message_bytes_},
                                             region_->descriptor(), &operations_[index]);
    if (!posted.ok()) {
      MutexLock lock(&shared_->mu);
      shared_->free.insert(shared_->free.end(), free.begin(), free.end());
      return posted;
    }
    free.pop_back();
  }
  return absl::OkStatus();
}

ByteSpan FabricReceiver::MessageOf(const FabricEvent& event) const {
  const size_t index = static_cast<const Operation*>(event.operation)->index;
  return {BufferAt(index), event.bytes <= message_bytes_ ? event.bytes : 0};
}

Buffer FabricReceiver::Lend(const FabricEvent& event, size_t offset) {
  const size_t index = static_cast<const Operation*>(event.operation)->index;
  const MutableByteSpan bytes(BufferAt(index) + offset, MessageOf(event).size() - offset);
  // Half of the buffers stay for the provider. If readers held all of them, nothing could arrive,
  // not even the credits for which those readers may be waiting.
  bool lends = false;
  {
    MutexLock lock(&shared_->mu);
    lends = shared_->lent < kBuffers / 2;
    if (lends) ++shared_->lent;
  }
  if (!lends) {
    copied_->Add(bytes.size());
    Buffer copy = Buffer::CopyOf(bytes);
    Return(event);
    return copy;
  }
  return Buffer::Wrap(bytes, [shared = shared_, index] {
    MutexLock lock(&shared->mu);
    --shared->lent;
    shared->free.push_back(index);
  });
}

void FabricReceiver::Return(const FabricEvent& event) {
  MutexLock lock(&shared_->mu);
  shared_->free.push_back(static_cast<const Operation*>(event.operation)->index);
}

}  // namespace bdn
