#include "server/rows/row_store.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/hash/hash.h"

namespace bdn {
namespace {

// Records are in slabs of so many, which never move. A table of few rows takes one slab in each
// bucket, so slabs are small.
constexpr uint32_t kSlab = 64;

// A record lies behind its id, whose bits take the place of two floats: to tell whether a slot has
// the id that is looked for is to have the beginning of its record at hand.
constexpr size_t kIdFloats = sizeof(uint64_t) / sizeof(float);
// The ids of a list are looked for so far ahead of the one that is found.
constexpr size_t kAhead = 8;

struct Slab {
  std::unique_ptr<float[]> records;
  uint64_t used = 0;  // a bit for each record
};
struct Slabs {
  // Returns the place of an id, which its record follows.
  float* At(uint32_t slot) const {
    return list[slot / kSlab].records.get() + (slot % kSlab) * stride;
  }
  uint64_t IdAt(uint32_t slot) const {
    uint64_t id;
    std::memcpy(&id, At(slot), sizeof id);
    return id;
  }

  const size_t stride;  // floats of a record and of its id
  std::vector<Slab> list;
};

struct Id {
  uint64_t value;
};
// The index has slots alone, whose ids are in the slabs: 4 bytes an entry instead of 16.
struct SlotHash {
  using is_transparent = void;
  size_t operator()(Id id) const { return absl::Hash<uint64_t>()(id.value); }
  size_t operator()(uint32_t slot) const { return (*this)(Id{slabs->IdAt(slot)}); }
  const Slabs* slabs;
};
struct SlotEq {
  using is_transparent = void;
  bool operator()(uint32_t a, uint32_t b) const { return a == b; }
  bool operator()(uint32_t slot, Id id) const { return slabs->IdAt(slot) == id.value; }
  bool operator()(Id id, uint32_t slot) const { return slabs->IdAt(slot) == id.value; }
  const Slabs* slabs;
};

class MemoryRowStore final : public RowStore {
 public:
  explicit MemoryRowStore(size_t floats)
      : slabs_{.stride = floats + kIdFloats},
        slots_(/*bucket_count=*/0, SlotHash{&slabs_}, SlotEq{&slabs_}) {}

  float* Find(uint64_t id) override {
    const auto found = slots_.find(Id{id});
    return found == slots_.end() ? nullptr : slabs_.At(*found) + kIdFloats;
  }
  const float* Find(uint64_t id) const override {
    const auto found = slots_.find(Id{id});
    return found == slots_.end() ? nullptr : slabs_.At(*found) + kIdFloats;
  }
  void FindAll(std::span<const uint64_t> ids, std::span<float*> records) override {
    for (size_t i = 0; i < ids.size(); ++i) {
      if (i + kAhead < ids.size()) slots_.prefetch(Id{ids[i + kAhead]});
      records[i] = Find(ids[i]);
    }
  }
  float* Insert(uint64_t id) override {
    if (free_.empty()) {
      const auto first = static_cast<uint32_t>(slabs_.list.size()) * kSlab;
      slabs_.list.push_back({.records = std::make_unique<float[]>(kSlab * slabs_.stride)});
      for (uint32_t i = kSlab; i-- > 0;) free_.push_back(first + i);
    }
    const uint32_t slot = free_.back();
    free_.pop_back();
    slabs_.list[slot / kSlab].used |= uint64_t{1} << (slot % kSlab);
    float* const at = slabs_.At(slot);
    std::memcpy(at, &id, sizeof id);
    slots_.insert(slot);
    return at + kIdFloats;
  }
  bool Erase(uint64_t id) override {
    const auto found = slots_.find(Id{id});
    if (found == slots_.end()) return false;
    const uint32_t slot = *found;
    slots_.erase(found);
    slabs_.list[slot / kSlab].used &= ~(uint64_t{1} << (slot % kSlab));
    free_.push_back(slot);
    return true;
  }

  size_t size() const override { return slots_.size(); }
  size_t bytes() const override {
    // A slot of the index has a byte of its own beside the entry.
    return slabs_.list.capacity() * sizeof(Slab) +
           slabs_.list.size() * kSlab * slabs_.stride * sizeof(float) +
           slots_.capacity() * (sizeof(uint32_t) + 1) + free_.capacity() * sizeof(uint32_t);
  }
  uint64_t places() const override { return slabs_.list.size() * kSlab; }
  uint64_t Visit(
      uint64_t place, uint64_t most,
      const std::function<bool(uint64_t id, const float* record)>& visit) const override {
    const uint64_t end = places() - std::min(place, places()) < most ? places() : place + most;
    for (; place < end; ++place) {
      const auto slot = static_cast<uint32_t>(place);
      if ((slabs_.list[slot / kSlab].used >> (slot % kSlab) & 1) == 0) continue;
      if (!visit(slabs_.IdAt(slot), slabs_.At(slot) + kIdFloats)) return place + 1;
    }
    return place;
  }
  std::unique_ptr<RowStore> Clone() const override {
    const size_t floats = slabs_.stride - kIdFloats;
    auto clone = std::make_unique<MemoryRowStore>(floats);
    for (const uint32_t slot : slots_) {
      std::copy_n(slabs_.At(slot) + kIdFloats, floats, clone->Insert(slabs_.IdAt(slot)));
    }
    return clone;
  }

 private:
  Slabs slabs_;
  absl::flat_hash_set<uint32_t, SlotHash, SlotEq> slots_;
  std::vector<uint32_t> free_;
};

}  // namespace

std::unique_ptr<RowStore> MakeMemoryRowStore(size_t floats) {
  return std::make_unique<MemoryRowStore>(floats);
}

}  // namespace bdn
