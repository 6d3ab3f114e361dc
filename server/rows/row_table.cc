#include "server/rows/row_table.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "common/base/status.h"
#include "common/wire/message.h"

namespace bdn {
namespace {

// The floats behind a record's values and moments, whose bits are its RowCounters.
constexpr size_t kCounters = kRowCounters;
// A scan looks at so many places.
constexpr uint64_t kPlacesAScan = uint64_t{1} << 16;

bool AllFinite(std::span<const float> values) {
  return std::ranges::all_of(values, [](float value) { return std::isfinite(value); });
}

}  // namespace

float* RowSums::Of(uint64_t id) {
  const auto [place, is_new] = places_.try_emplace(id, ids_.size());
  if (is_new) {
    ids_.push_back(id);
    sums_.resize(sums_.size() + width_, 0.0f);
  }
  return sums_.data() + place->second * width_;
}

std::span<const float> RowSums::Find(uint64_t id) const {
  const auto place = places_.find(id);
  return place == places_.end() ? std::span<const float>() : at(place->second);
}

size_t RowSums::bytes() const {
  return places_.capacity() * (sizeof(std::pair<uint64_t, size_t>) + 1) +
         ids_.capacity() * sizeof(uint64_t) + sums_.capacity() * sizeof(float);
}

std::vector<size_t> RowSums::Rising() const {
  std::vector<size_t> order(ids_.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::sort(order, {}, [this](size_t i) { return ids_[i]; });
  return order;
}

bool RowSums::Scale(float factor) {
  for (float& value : sums_) value *= factor;
  return AllFinite(sums_);
}

RowTable::RowTable(const InitialValues& initial, const RowRule* rule, size_t width,
                   size_t moment_floats)
    : initial_(initial),
      rule_(rule),
      width_(width),
      moment_floats_(moment_floats),
      store_(MakeMemoryRowStore(width + moment_floats + kCounters)) {}

RowTable::RowTable(const RowTable& other)
    : initial_(other.initial_),
      rule_(other.rule_),
      width_(other.width_),
      moment_floats_(other.moment_floats_),
      store_(other.store_->Clone()),
      updates_(other.updates_) {}

size_t RowTable::row_bytes() const {
  constexpr size_t kOfTheIndex = 20;  // its id among them
  return record_bytes() + kOfTheIndex;
}

void RowTable::Read(uint64_t id, std::span<float> row) const {
  const float* const record = std::as_const(*store_).Find(id);
  if (record == nullptr) return WriteInitialRow(initial_, id, row);
  std::copy_n(record, width_, row.data());
}

size_t RowTable::CountNew(std::span<const uint64_t> ids) const {
  const RowStore& store = *store_;
  return static_cast<size_t>(
      std::ranges::count_if(ids, [&](uint64_t id) { return store.Find(id) == nullptr; }));
}

float* RowTable::FindOrInsert(uint64_t id) {
  float* const record = store_->Find(id);
  return record != nullptr ? record : store_->Insert(id);
}

void RowTable::Set(uint64_t id, std::span<const float> row) {
  float* const record = FindOrInsert(id);
  std::ranges::copy(row, record);
  rule_->Begin({record + width_, moment_floats_});
  StoreCounters(/*row_updates=*/0, record);
}

void RowTable::StoreCounters(uint32_t row_updates, float* record) const {
  constexpr uint64_t kMost = std::numeric_limits<uint32_t>::max();
  float* const counters = record + width_ + moment_floats_;
  counters[0] = std::bit_cast<float>(row_updates);
  counters[1] = std::bit_cast<float>(static_cast<uint32_t>(std::min(updates_ + 1, kMost)));
}

RowTable::Scanned RowTable::Scan(uint64_t place, uint64_t since, size_t most) const {
  Scanned scanned;
  const size_t at = width_ + moment_floats_ + 1;
  scanned.next = store_->Visit(place, kPlacesAScan, [&](uint64_t id, const float* record) {
    if (std::bit_cast<uint32_t>(record[at]) > since) scanned.records.emplace_back(id, record);
    return scanned.records.size() < most;
  });
  if (scanned.next >= places()) scanned.next = 0;
  std::ranges::sort(scanned.records);
  return scanned;
}

absl::Status RowTable::CheckRecord(ByteSpan record, uint64_t updates) const {
  std::vector<float> floats(width_ + moment_floats_);
  DecodeFloats(record.first(floats.size() * sizeof(float)), floats);
  if (!AllFinite(floats)) return InvalidArgument("an element that is not finite");
  if (!rule_->Accepts(std::span(floats).subspan(width_))) {
    return InvalidArgument("moments that the rule cannot have left");
  }
  const RowCounters counters = CountersOf(record);
  // A row that was set behind the last update counts as changed in the next.
  if (counters.updates > updates || counters.changed > updates + 1) {
    return InvalidArgument("%d updates, the last at %d, in a table of %d updates", counters.updates,
                           counters.changed, updates);
  }
  return absl::OkStatus();
}

void RowTable::SetRecord(uint64_t id, ByteSpan record) {
  std::memcpy(FindOrInsert(id), record.data(), record.size());
}

void RowTable::Clear() {
  store_ = MakeMemoryRowStore(width_ + moment_floats_ + kCounters);
  updates_ = 0;
}

void RowTable::Load(uint64_t id, float* record) const {
  const size_t floats = width_ + moment_floats_ + kCounters;
  if (const float* const stored = std::as_const(*store_).Find(id); stored != nullptr) {
    std::copy_n(stored, floats, record);
    return;
  }
  WriteInitialRow(initial_, id, {record, width_});
  rule_->Begin({record + width_, moment_floats_});
  StoreCounters(/*row_updates=*/0, record);
}

RowTable::Stepped RowTable::Step(RowSums* means, float learning_rate) const {
  const size_t floats = width_ + moment_floats_ + kCounters;
  Stepped stepped{.ids = means->ids(), .records = {}};
  stepped.records.resize(stepped.ids.size() * floats);
  const RowFacts facts{.learning_rate = learning_rate, .step = updates_ + 1};
  for (size_t i = 0; i < stepped.ids.size(); ++i) {
    float* const record = stepped.records.data() + i * floats;
    Load(stepped.ids[i], record);
    const uint32_t updates = std::bit_cast<uint32_t>(record[floats - kCounters]) + 1;
    rule_->Update(facts, updates, means->at(i), {record, width_},
                  {record + width_, moment_floats_});
    stepped.is_finite = stepped.is_finite && AllFinite({record, floats - kCounters});
    StoreCounters(updates, record);
  }
  return stepped;
}

void RowTable::Take(const Stepped& stepped) {
  const size_t floats = width_ + moment_floats_ + kCounters;
  for (size_t i = 0; i < stepped.ids.size(); ++i) {
    std::copy_n(stepped.records.data() + i * floats, floats, FindOrInsert(stepped.ids[i]));
  }
  ++updates_;
}

}  // namespace bdn
