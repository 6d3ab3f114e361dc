#ifndef BANDONEON_COMMON_BASE_MEMORY_DOMAIN_H_
#define BANDONEON_COMMON_BASE_MEMORY_DOMAIN_H_

#include <cstddef>
#include <memory>

namespace bdn {

// A kind of memory that blocks are made of. The host's heap is one; a transport may lend another,
// such as memory that a network card has registered or that the peer has mapped, so that what is
// encoded into it is sent without a copy. Thread-safe.
class MemoryDomain {
 public:
  virtual ~MemoryDomain() = default;

  // A block of at least `size` bytes, aligned to 64, whose pages are there. Null: it has no more.
  virtual std::byte* Allocate(size_t size) = 0;
  // Gives back what Allocate(size) returned.
  virtual void Free(std::byte* block, size_t size) = 0;
};

// The heap of this process, which does not run out: bad_alloc instead.
std::shared_ptr<MemoryDomain> HostMemory();

}  // namespace bdn

#endif  // BANDONEON_COMMON_BASE_MEMORY_DOMAIN_H_
