#include "common/transport/shm/shm_copies.h"

#include <cstring>
#include <utility>

namespace bdn {
namespace {

// A smaller payload is copied faster than its copy is found.
constexpr size_t kWorthFinding = 4096;

}  // namespace

ShmCopies::ShmCopies(std::shared_ptr<ShmArena> arena) : arena_(std::move(arena)), pool_(arena_) {}

bool ShmCopies::Replace(Buffer* payload) {
  if (payload->empty() || arena_->Find(payload->span()).has_value()) return true;
  const std::byte* const original = payload->data();
  const bool is_shared = payload->size() >= kWorthFinding;
  if (is_shared) {
    Buffer found;  // outlives the lock: the end of a copy takes it (OnGone)
    MutexLock lock(&state_->mu);
    const auto entry = state_->entries.find(original);
    if (entry != state_->entries.end()) found = entry->second.copy.Lock();
    if (found.size() == payload->size()) {
      std::swap(*payload, found);
      return true;
    }
  }
  Buffer copy = pool_.Get(payload->size());
  if (!arena_->Find(copy.span()).has_value()) return false;
  std::memcpy(copy.data(), original, copy.size());
  if (is_shared) {
    copy = Buffer::Wrap(copy.mutable_span(), [state = state_, block = copy, original] {
      OnGone(state.get(), original, block.data());
    });
  }
  Entry former;  // outlives the lock, too
  {
    MutexLock lock(&state_->mu);
    state_->bytes_copied += copy.size();
    if (is_shared) {
      former = std::exchange(state_->entries[original], {*payload, WeakBuffer(copy), copy.data()});
    }
  }
  *payload = std::move(copy);
  return true;
}

void ShmCopies::OnGone(State* state, const std::byte* original, const std::byte* place) {
  Entry gone;
  MutexLock lock(&state->mu);
  const auto entry = state->entries.find(original);
  // Another payload may have come to the original's address since, with a copy of its own.
  if (entry == state->entries.end() || entry->second.place != place) return;
  gone = std::move(entry->second);
  state->entries.erase(entry);
}

void ShmCopies::Forget() {
  absl::flat_hash_map<const std::byte*, Entry> gone;
  MutexLock lock(&state_->mu);
  // Swapped out, so that the originals are freed after the lock is given back.
  gone.swap(state_->entries);
}

size_t ShmCopies::bytes_copied() const {
  MutexLock lock(&state_->mu);
  return state_->bytes_copied;
}

}  // namespace bdn
