#ifndef BANDONEON_COMMON_TRANSPORT_SHM_SHM_COPIES_H_
#define BANDONEON_COMMON_TRANSPORT_SHM_SHM_COPIES_H_

#include <cstddef>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "common/base/buffer.h"
#include "common/base/mutex.h"
#include "common/transport/shm/shm_arena.h"

namespace bdn {

// Copies in an arena of payloads that are in other memory: one copy of each payload, however many
// peers it is sent to, for as long as one of them has not read it. (A payload of less than 4 KiB is
// copied for each peer.) Thread-safe.
class ShmCopies {
 public:
  explicit ShmCopies(std::shared_ptr<ShmArena> arena);

  // Replaces a payload by its copy, unless it is in the arena. Returns false where there is no
  // memory for a copy now. While a copy for several peers exists its original is held, too, so that
  // it stays as it was copied.
  bool Replace(Buffer* payload);
  // Drops all originals.
  void Forget();

  // Returns the bytes copied so far.
  size_t bytes_copied() const;

 private:
  struct Entry {
    Buffer original;
    WeakBuffer copy;
    const std::byte* place = nullptr;  // of the copy
  };
  struct State {
    Mutex mu;
    absl::flat_hash_map<const std::byte*, Entry> entries ABSL_GUARDED_BY(mu);  // by original
    size_t bytes_copied ABSL_GUARDED_BY(mu) = 0;
  };
  static void OnGone(State* state, const std::byte* original, const std::byte* place);

  const std::shared_ptr<ShmArena> arena_;
  BufferPool pool_;
  // Shared, as copies may outlive this object.
  const std::shared_ptr<State> state_ = std::make_shared<State>();
};

}  // namespace bdn

#endif  // BANDONEON_COMMON_TRANSPORT_SHM_SHM_COPIES_H_
