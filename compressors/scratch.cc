#include "compressors/scratch.h"

#include <cstdlib>
#include <new>
#include <vector>

namespace bdn {
namespace {

constexpr size_t kAlignment = 64;

// Slot d serves the d-th scratch that is out at once.
struct Slot {
  std::byte* data = nullptr;
  size_t size = 0;
};

class ThreadSlots {
 public:
  ~ThreadSlots() {
    for (const Slot& slot : slots_) std::free(slot.data);
  }
  std::byte* Lend(size_t bytes) {
    if (depth_ == slots_.size()) slots_.emplace_back();
    Slot& slot = slots_[depth_];
    if (slot.size < bytes) {
      std::free(slot.data);
      slot = {};
      const size_t size = (bytes + bytes / 2 + kAlignment - 1) / kAlignment * kAlignment;
      slot.data = static_cast<std::byte*>(std::aligned_alloc(kAlignment, size));
      if (slot.data == nullptr) throw std::bad_alloc();
      slot.size = size;
    }
    ++depth_;
    return slot.data;
  }
  void Return() { --depth_; }

 private:
  std::vector<Slot> slots_;
  size_t depth_ = 0;
};

thread_local ThreadSlots slots;

}  // namespace

Scratch::Scratch(size_t bytes) : data_(slots.Lend(bytes == 0 ? 1 : bytes)) {}
Scratch::~Scratch() { slots.Return(); }

}  // namespace bdn
