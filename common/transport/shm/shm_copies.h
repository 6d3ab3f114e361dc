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

// Copies in an arena of payloads that are of other memory: one of each, however many peers it is sent
// to, for as long as some of them have not read it. Thread-safe.
class ShmCopies {
 public:
  explicit ShmCopies(std::shared_ptr<ShmArena> arena);

  // Makes it a copy, unless it is of the arena. False: there is no memory for it now. While a copy is
  // there, its original is held, too, so that it stays as it was copied.
  bool Replace(Buffer* payload);
  // Lets go of all originals.
  void Forget();

  // Bytes that were copied so far.
  size_t bytes_copied() const;

 private:
  struct Entry {
    Buffer original;
    WeakBuffer copy;
    const std::byte* place = nullptr;  // the copy's
  };
  struct State {
    Mutex mu;
    absl::flat_hash_map<const std::byte*, Entry> entries ABSL_GUARDED_BY(mu);  // by original
    size_t bytes_copied ABSL_GUARDED_BY(mu) = 0;
  };
  static void OnGone(State* state, const std::byte* original, const std::byte* place);

  const std::shared_ptr<ShmArena> arena_;
  BufferPool pool_;
  const std::shared_ptr<State> state_ = std::make_shared<State>();  // copies may outlive us
};

}  // namespace bdn

#endif  // BANDONEON_COMMON_TRANSPORT_SHM_SHM_COPIES_H_
