#include "common/transport/fabric/fabric_window.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "common/base/status.h"

namespace bdn {

absl::StatusOr<std::shared_ptr<FabricWindow>> FabricWindow::Make(
    const FabricEndpoint& endpoint, Options options, std::shared_ptr<RetiredAddresses> retired) {
  const uint64_t bytes = uint64_t{options.block_bytes} * options.num_blocks;
  BDN_ASSIGN_OR_RETURN(std::unique_ptr<FabricMemory> memory,
                       FabricMemory::Make(bytes, std::move(retired)));
  std::shared_ptr<FabricWindow> window(new FabricWindow(std::move(options), std::move(memory)));
  BDN_ASSIGN_OR_RETURN(window->region_,
                       endpoint.Register(window->memory_->span(), /*peers_may_write=*/true));
  window->grant_ = {.key = window->region_->key(),
                    .base = window->region_->base(),
                    .block_bytes = window->options_.block_bytes,
                    .num_blocks = window->options_.num_blocks,
                    .immediate = window->options_.immediate};
  return window;
}

FabricWindow::Arrival FabricWindow::Arrive(uint32_t block, Frame* frame) {
  if (block >= options_.num_blocks) return Arrival::kMalformed;
  {
    MutexLock lock(&mu_);
    if (runs_[block].is_held) return Arrival::kMalformed;
  }
  // The head is copied before it is checked, because the peer can change the original meanwhile.
  std::array<std::byte, kFabricHeadBytes> head;
  std::byte* const at = memory_->data() + uint64_t{block} * options_.block_bytes;
  std::memcpy(head.data(), at, head.size());
  const absl::StatusOr<FabricPrefix> prefix = DecodeFabricPrefix(head);
  // Anybody who has the endpoint's address may send any four bytes, so the writer is not known, and
  // no peer is blamed for bytes that do not show the token.
  if (!prefix.ok() || prefix->token != options_.token ||
      prefix->number != FabricNumber(options_.immediate) ||
      prefix->kind != FabricPrefix::Kind::kFrame) {
    return Arrival::kMalformed;
  }
  const uint64_t payload_bytes = prefix->payload_bytes;
  if (payload_bytes > options_.max_payload_bytes) return Arrival::kBroken;
  const uint32_t count = BlocksOf(kFabricHeadBytes + payload_bytes, options_.block_bytes);
  bool lends_more = false;
  if (!Claim(block, count, &lends_more)) return Arrival::kBroken;
  Buffer payload = Buffer::Wrap({at + kFabricHeadBytes, payload_bytes},
                                [self = shared_from_this(), block] { self->Release(block); });
  const absl::StatusOr<FrameHeader> header =
      DecodeHeader(ByteSpan(head).subspan(kFabricPrefixBytes));
  if (!header.ok() || header->payload_bytes != payload_bytes) return Arrival::kMalformed;
  *frame = Frame{*header, Buffer(), /*is_of_host=*/false, /*is_lent=*/payload_bytes > 0};
  if (payload_bytes == 0) return Arrival::kFrame;
  frame->payload = std::move(payload);
  if (!lends_more) {
    Own(frame);
    options_.copied->Add(payload_bytes);
  }
  return Arrival::kFrame;
}

// Marks blocks as held by a frame. False: a frame that is still read lies there, or the window is
// too short.
bool FabricWindow::Claim(uint32_t block, uint32_t count, bool* lends_more) {
  if (count > options_.num_blocks - block) return false;
  MutexLock lock(&mu_);
  const auto begin = runs_.begin() + block;
  if (std::any_of(begin, begin + count, [](const Run& run) { return run.is_held; })) return false;
  std::for_each(begin, begin + count, [](Run& run) { run.is_held = true; });
  begin->count = count;
  held_ += count;
  // Beyond three quarters frames are copied, so that readers which hold payloads for long do not
  // leave the peer without room.
  *lends_more = uint64_t{held_} * 4 <= uint64_t{options_.num_blocks} * 3;
  return true;
}

void FabricWindow::Release(uint32_t block) {
  // The old head is erased before the block is free, so that nobody who names the block again finds
  // a frame there that was not written anew.
  std::memset(memory_->data() + uint64_t{block} * options_.block_bytes, 0, kFabricHeadBytes);
  bool say = false;
  {
    MutexLock lock(&mu_);
    const uint32_t count = std::exchange(runs_[block].count, 0);
    const auto begin = runs_.begin() + block;
    std::for_each(begin, begin + count, [](Run& run) { run.is_held = false; });
    held_ -= count;
    released_.push_back(block);
    released_blocks_ += count;
    // Credits are told in bunches, because each telling is a message; at once where the peer waits
    // for them.
    const bool is_due = is_wanted_ || uint64_t{released_blocks_} * 8 >= options_.num_blocks;
    say = is_due && !has_said_;
    if (say) has_said_ = true;
  }
  if (say) options_.released();
}

void FabricWindow::Want() {
  bool say = false;
  {
    MutexLock lock(&mu_);
    is_wanted_ = true;
    say = !released_.empty() && !has_said_;
    if (say) has_said_ = true;
  }
  if (say) options_.released();
}

std::vector<uint32_t> FabricWindow::TakeReleased() {
  MutexLock lock(&mu_);
  has_said_ = false;
  if (!released_.empty()) is_wanted_ = false;
  released_blocks_ = 0;
  return std::exchange(released_, {});
}

std::optional<FabricPeerWindow::Place> FabricPeerWindow::Take(uint64_t frame_bytes) {
  const uint32_t count = BlocksOf(frame_bytes, grant_.block_bytes);
  const std::optional<size_t> block = free_.Take(count);
  if (!block.has_value()) return std::nullopt;
  runs_[*block] = count;
  const auto first = static_cast<uint32_t>(*block);
  return Place{first, grant_.base + uint64_t{first} * grant_.block_bytes, grant_.key,
               grant_.immediate | first};
}

bool FabricPeerWindow::Give(uint32_t block) {
  if (block >= runs_.size() || runs_[block] == 0) return false;
  free_.Give(block, std::exchange(runs_[block], 0));
  return true;
}

}  // namespace bdn
