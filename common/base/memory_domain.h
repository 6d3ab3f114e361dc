#ifndef BANDONEON_COMMON_BASE_MEMORY_DOMAIN_H_
#define BANDONEON_COMMON_BASE_MEMORY_DOMAIN_H_

#include <cstddef>
#include <memory>

namespace bdn {

// A kind of memory that blocks are made of. The host's heap is one; a transport may lend another,
// such as memory that a network card has registered or that the peer has mapped, so that a payload
// that is encoded into it is sent without a copy. Thread-safe.
class MemoryDomain {
 public:
  virtual ~MemoryDomain() = default;

  // Returns a block of at least `size` bytes, aligned to 64, whose pages are present; null where
  // the domain has no more.
  virtual std::byte* Allocate(size_t size) = 0;
  // Gives back a block that Allocate(size) returned.
  virtual void Free(std::byte* block, size_t size) = 0;
};

// Returns the heap of this process, which does not run out: it throws bad_alloc instead.
std::shared_ptr<MemoryDomain> HostMemory();

}  // namespace bdn

#endif  // BANDONEON_COMMON_BASE_MEMORY_DOMAIN_H_
