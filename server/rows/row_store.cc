#include "server/rows/row_store.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/hash/hash.h"

namespace bdn {
namespace {

// Records are in slabs of so many, which never move. A table of few rows takes one slab in each
// bucket, so slabs are small.
constexpr uint32_t kSlab = 64;

struct Slab {
  explicit Slab(size_t floats) : records(std::make_unique<float[]>(kSlab * floats)) {}

  std::unique_ptr<float[]> records;
  std::array<uint64_t, kSlab> ids{};
  uint64_t used = 0;  // a bit for each record
};
using Slabs = std::vector<std::unique_ptr<Slab>>;

struct Id {
  uint64_t value;
};
uint64_t IdAt(const Slabs& slabs, uint32_t slot) { return slabs[slot / kSlab]->ids[slot % kSlab]; }

// The index has slots alone, whose ids are in the slabs: 4 bytes an entry instead of 16.
struct SlotHash {
  using is_transparent = void;
  size_t operator()(Id id) const { return absl::Hash<uint64_t>()(id.value); }
  size_t operator()(uint32_t slot) const { return (*this)(Id{IdAt(*slabs, slot)}); }
  const Slabs* slabs;
};
struct SlotEq {
  using is_transparent = void;
  bool operator()(uint32_t a, uint32_t b) const { return a == b; }
  bool operator()(uint32_t slot, Id id) const { return IdAt(*slabs, slot) == id.value; }
  bool operator()(Id id, uint32_t slot) const { return IdAt(*slabs, slot) == id.value; }
  const Slabs* slabs;
};

class MemoryRowStore final : public RowStore {
 public:
  explicit MemoryRowStore(size_t floats)
      : floats_(floats), slots_(/*bucket_count=*/0, SlotHash{&slabs_}, SlotEq{&slabs_}) {}

  float* Find(uint64_t id) override { return const_cast<float*>(std::as_const(*this).Find(id)); }
  const float* Find(uint64_t id) const override {
    const auto found = slots_.find(Id{id});
    return found == slots_.end() ? nullptr : At(*found);
  }
  float* Insert(uint64_t id) override {
    if (free_.empty()) {
      const auto first = static_cast<uint32_t>(slabs_.size()) * kSlab;
      slabs_.push_back(std::make_unique<Slab>(floats_));
      for (uint32_t i = kSlab; i-- > 0;) free_.push_back(first + i);
    }
    const uint32_t slot = free_.back();
    free_.pop_back();
    Slab& slab = *slabs_[slot / kSlab];
    slab.ids[slot % kSlab] = id;
    slab.used |= uint64_t{1} << (slot % kSlab);
    slots_.insert(slot);
    return At(slot);
  }
  bool Erase(uint64_t id) override {
    const auto found = slots_.find(Id{id});
    if (found == slots_.end()) return false;
    const uint32_t slot = *found;
    slots_.erase(found);
    slabs_[slot / kSlab]->used &= ~(uint64_t{1} << (slot % kSlab));
    free_.push_back(slot);
    return true;
  }

  size_t size() const override { return slots_.size(); }
  size_t bytes() const override {
    // A slot of the index has a byte of its own beside the entry.
    return slabs_.size() * (sizeof(Slab) + sizeof(Slabs::value_type)) +
           slabs_.size() * kSlab * floats_ * sizeof(float) +
           slots_.capacity() * (sizeof(uint32_t) + 1) + free_.capacity() * sizeof(uint32_t);
  }
  uint64_t places() const override { return slabs_.size() * kSlab; }
  uint64_t Visit(
      uint64_t place, uint64_t most,
      const std::function<bool(uint64_t id, const float* record)>& visit) const override {
    const uint64_t end = places() - std::min(place, places()) < most ? places() : place + most;
    for (; place < end; ++place) {
      const auto slot = static_cast<uint32_t>(place);
      if ((slabs_[slot / kSlab]->used >> (slot % kSlab) & 1) == 0) continue;
      if (!visit(IdAt(slabs_, slot), At(slot))) return place + 1;
    }
    return place;
  }
  std::unique_ptr<RowStore> Clone() const override {
    auto clone = std::make_unique<MemoryRowStore>(floats_);
    for (const uint32_t slot : slots_) {
      std::copy_n(At(slot), floats_, clone->Insert(IdAt(slabs_, slot)));
    }
    return clone;
  }

 private:
  float* At(uint32_t slot) const {
    return slabs_[slot / kSlab]->records.get() + (slot % kSlab) * floats_;
  }

  const size_t floats_;
  Slabs slabs_;
  absl::flat_hash_set<uint32_t, SlotHash, SlotEq> slots_;
  std::vector<uint32_t> free_;
};

}  // namespace

std::unique_ptr<RowStore> MakeMemoryRowStore(size_t floats) {
  return std::make_unique<MemoryRowStore>(floats);
}

}  // namespace bdn
