#include "compressors/scratch.h"

#include <cstdlib>
#include <new>
#include <vector>

namespace bdn {
namespace {

constexpr size_t kAlignment = 64;

// The memory of the d-th scratch that a thread has lent out at the same time. Slots grow and never
// shrink, so that a thread soon has all that it needs.
struct Slot {
  std::byte* data = nullptr;
  size_t size = 0;
};

// The working memory of one thread, freed when the thread ends. slots_ may move; the memory that it
// points to does not.
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
      // Half as much again, so that sizes which rise slowly do not allocate each time.
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

// An unused slot has no address yet, so 0 bytes are lent as 1.
Scratch::Scratch(size_t bytes) : data_(slots.Lend(bytes == 0 ? 1 : bytes)) {}
Scratch::~Scratch() { slots.Return(); }

}  // namespace bdn
