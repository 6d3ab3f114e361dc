#include "device/pinned_ring.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "common/base/status.h"

namespace bdn {

PinnedRing::~PinnedRing() {
  for (const Block& block : blocks_) {
    if (block.has_event) device_->FreeEvent(block.event);
    if (block.ordinary == nullptr) device_->FreePinned(block.memory);
  }
}

// Makes all that is missing. After an error the next copy tries again.
absl::Status PinnedRing::Prepare() {
  for (Block& block : blocks_) {
    if (block.memory == nullptr) BDN_RETURN_IF_ERROR(MakeMemory(&block));
    if (block.has_event) continue;
    BDN_ASSIGN_OR_RETURN(block.event, device_->MakeEvent());
    block.has_event = true;
  }
  return absl::OkStatus();
}

absl::Status PinnedRing::MakeMemory(Block* block) {
  const absl::StatusOr<std::byte*> pinned = device_->AllocatePinned(kBlockBytes);
  if (pinned.ok()) {
    block->memory = *pinned;
    return absl::OkStatus();
  }
  if (!absl::IsResourceExhausted(pinned.status())) return pinned.status();
  // A copy is the last resort of an exchange, so it must not fail for want of pinned memory.
  if (not_pinned_ != nullptr) std::exchange(not_pinned_, nullptr)(pinned.status());
  block->ordinary = std::make_unique_for_overwrite<std::byte[]>(kBlockBytes);
  block->memory = block->ordinary.get();
  return absl::OkStatus();
}

absl::Status PinnedRing::CopyToDevice(DeviceStream stream, ByteSpan from, void* to) {
  MutexLock lock(&mu_);
  BDN_RETURN_IF_ERROR(Prepare());
  const absl::Status status = Upload(stream, from, static_cast<std::byte*>(to));
  if (!status.ok()) device_->Synchronize(stream).IgnoreError();  // the blocks may be in use
  return status;
}

absl::Status PinnedRing::CopyToHost(DeviceStream stream, const void* from, MutableByteSpan to) {
  MutexLock lock(&mu_);
  BDN_RETURN_IF_ERROR(Prepare());
  const absl::Status status = Download(stream, static_cast<const std::byte*>(from), to);
  if (!status.ok()) device_->Synchronize(stream).IgnoreError();
  return status;
}

absl::Status PinnedRing::Upload(DeviceStream stream, ByteSpan from, std::byte* to) {
  size_t pieces = 0;
  for (size_t at = 0; at < from.size(); ++pieces) {
    const ByteSpan piece = from.subspan(at, std::min(kBlockBytes, from.size() - at));
    const Block& block = blocks_[pieces % blocks_.size()];
    // The block's last piece must have left it before the next piece is written into it.
    if (pieces >= blocks_.size()) BDN_RETURN_IF_ERROR(device_->Await(block.event));
    std::memcpy(block.memory, piece.data(), piece.size());
    BDN_RETURN_IF_ERROR(device_->CopyToDevice(stream, {block.memory, piece.size()}, to + at));
    BDN_RETURN_IF_ERROR(device_->Record(block.event, stream));
    at += piece.size();
  }
  if (pieces == 0) return absl::OkStatus();
  return device_->Await(
      blocks_[(pieces - 1) % blocks_.size()].event);  // the last piece comes after all others
}

absl::Status PinnedRing::Download(DeviceStream stream, const std::byte* from, MutableByteSpan to) {
  const size_t pieces = (to.size() + kBlockBytes - 1) / kBlockBytes;
  const auto piece_of = [&](size_t i) {
    const size_t at = i * kBlockBytes;
    return to.subspan(at, std::min(kBlockBytes, to.size() - at));
  };
  // Both blocks are ordered ahead: the device fills one while the other is emptied.
  for (size_t asked = 0, taken = 0; taken < pieces; ++taken) {
    for (; asked < std::min(pieces, taken + blocks_.size()); ++asked) {
      const Block& block = blocks_[asked % blocks_.size()];
      BDN_RETURN_IF_ERROR(device_->CopyToHost(stream, from + asked * kBlockBytes,
                                              {block.memory, piece_of(asked).size()}));
      BDN_RETURN_IF_ERROR(device_->Record(block.event, stream));
    }
    const Block& block = blocks_[taken % blocks_.size()];
    BDN_RETURN_IF_ERROR(device_->Await(block.event));
    const MutableByteSpan piece = piece_of(taken);
    std::memcpy(piece.data(), block.memory, piece.size());
  }
  return absl::OkStatus();
}

}  // namespace bdn
