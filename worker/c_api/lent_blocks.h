#ifndef BANDONEON_WORKER_C_API_LENT_BLOCKS_H_
#define BANDONEON_WORKER_C_API_LENT_BLOCKS_H_

#include <cstdint>
#include <map>
#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "common/base/memory_domain.h"
#include "common/base/mutex.h"
#include "common/base/status.h"

namespace bdn {

// A table of the blocks that callers have allocated from workers' memory. Blocks may outlive their
// workers. Thread-safe.
class LentBlocks {
 public:
  absl::StatusOr<void*> Allocate(std::shared_ptr<MemoryDomain> domain, uint64_t bytes) {
    // Beyond this, sizes would overflow where they are rounded up.
    constexpr uint64_t kMostBytes = uint64_t{1} << 62;
    std::byte* const block = bytes > kMostBytes ? nullptr : domain->Allocate(bytes);
    if (block == nullptr) {
      return ResourceExhausted("%d bytes of memory to push from are not to be had", bytes);
    }
    MutexLock lock(&mu_);
    blocks_[block] = {std::move(domain), bytes};
    return block;
  }
  // Gives a block back; ignores an address that is no block of this table.
  void Free(void* block) {
    std::pair<std::shared_ptr<MemoryDomain>, uint64_t> lent;
    {
      MutexLock lock(&mu_);
      const auto found = blocks_.find(block);
      if (found == blocks_.end()) return;
      lent = std::move(found->second);
      blocks_.erase(found);
    }
    lent.first->Free(static_cast<std::byte*>(block), lent.second);
  }

 private:
  Mutex mu_;
  std::map<void*, std::pair<std::shared_ptr<MemoryDomain>, uint64_t>> blocks_ ABSL_GUARDED_BY(mu_);
};

// Returns the table of this process. It is never destroyed, so that the last blocks can be given
// back at any time.
inline LentBlocks& LentMemory() {
  static LentBlocks& blocks = *new LentBlocks;
  return blocks;
}

}  // namespace bdn

#endif  // BANDONEON_WORKER_C_API_LENT_BLOCKS_H_
