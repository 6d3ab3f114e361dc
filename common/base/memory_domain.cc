#include "common/base/memory_domain.h"

#include <cstring>
#include <new>

namespace bdn {
namespace {

constexpr std::align_val_t kAlignment{64};

class HeapMemory final : public MemoryDomain {
 public:
  std::byte* Allocate(size_t size) override {
    auto* block = static_cast<std::byte*>(::operator new(size, kAlignment));
    std::memset(block, 0, size);  // faults the pages now, not on the data path
    return block;
  }
  void Free(std::byte* block, size_t) override { ::operator delete(block, kAlignment); }
};

}  // namespace

std::shared_ptr<MemoryDomain> HostMemory() { return std::make_shared<HeapMemory>(); }

}  // namespace bdn
