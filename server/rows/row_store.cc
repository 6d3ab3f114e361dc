#include "server/rows/row_store.h"

#include <algorithm>
#include <utility>

namespace bdn {
namespace {

// Records are in slabs of so many, which never move. A table of few rows takes one slab in each
// bucket, so slabs are small.
constexpr uint32_t kSlab = 64;

class MemoryRowStore final : public RowStore {
 public:
  explicit MemoryRowStore(size_t floats) : floats_(floats) {}

  float* Find(uint64_t id) override { return const_cast<float*>(std::as_const(*this).Find(id)); }
  const float* Find(uint64_t id) const override {
    const auto found = slots_.find(id);
    return found == slots_.end() ? nullptr : At(found->second);
  }
  float* Insert(uint64_t id) override {
    if (free_.empty()) {
      const auto first = static_cast<uint32_t>(slabs_.size()) * kSlab;
      slabs_.push_back(std::make_unique<float[]>(kSlab * floats_));
      for (uint32_t i = kSlab; i-- > 0;) free_.push_back(first + i);
    }
    const uint32_t slot = free_.back();
    free_.pop_back();
    slots_.emplace(id, slot);
    return At(slot);
  }
  bool Erase(uint64_t id) override {
    const auto found = slots_.find(id);
    if (found == slots_.end()) return false;
    free_.push_back(found->second);
    slots_.erase(found);
    return true;
  }

  size_t size() const override { return slots_.size(); }
  size_t bytes() const override {
    // A slot of the map has a byte of its own beside the entry.
    return slabs_.size() * kSlab * floats_ * sizeof(float) +
           slots_.capacity() * (sizeof(std::pair<uint64_t, uint32_t>) + 1) +
           free_.capacity() * sizeof(uint32_t);
  }
  void ForEach(const std::function<void(uint64_t id, const float* record)>& visit) const override {
    for (const auto& [id, slot] : slots_) visit(id, At(slot));
  }
  std::unique_ptr<RowStore> Clone() const override {
    auto clone = std::make_unique<MemoryRowStore>(floats_);
    for (const auto& [id, slot] : slots_) std::copy_n(At(slot), floats_, clone->Insert(id));
    return clone;
  }

 private:
  float* At(uint32_t slot) const { return slabs_[slot / kSlab].get() + (slot % kSlab) * floats_; }

  const size_t floats_;
  absl::flat_hash_map<uint64_t, uint32_t> slots_;
  std::vector<std::unique_ptr<float[]>> slabs_;
  std::vector<uint32_t> free_;
};

}  // namespace

std::unique_ptr<RowStore> MakeMemoryRowStore(size_t floats) {
  return std::make_unique<MemoryRowStore>(floats);
}

}  // namespace bdn
