#include "server/rows/row_table.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace bdn {
namespace {

// The float behind a record's values and moments, whose bits count the row's updates.
constexpr size_t kCounters = 1;

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
  constexpr size_t kOfTheMap = 24;
  return (width_ + moment_floats_ + kCounters) * sizeof(float) + kOfTheMap;
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
  record[width_ + moment_floats_] = std::bit_cast<float>(uint32_t{0});
}

void RowTable::Load(uint64_t id, float* record) const {
  const size_t floats = width_ + moment_floats_ + kCounters;
  if (const float* const stored = std::as_const(*store_).Find(id); stored != nullptr) {
    std::copy_n(stored, floats, record);
    return;
  }
  WriteInitialRow(initial_, id, {record, width_});
  rule_->Begin({record + width_, moment_floats_});
  record[floats - 1] = std::bit_cast<float>(uint32_t{0});
}

RowTable::Stepped RowTable::Step(RowSums* means, float learning_rate) const {
  const size_t floats = width_ + moment_floats_ + kCounters;
  Stepped stepped{.ids = means->ids(), .records = {}};
  stepped.records.resize(stepped.ids.size() * floats);
  const RowFacts facts{.learning_rate = learning_rate, .step = updates_ + 1};
  for (size_t i = 0; i < stepped.ids.size(); ++i) {
    float* const record = stepped.records.data() + i * floats;
    Load(stepped.ids[i], record);
    const uint32_t updates = std::bit_cast<uint32_t>(record[floats - 1]) + 1;
    rule_->Update(facts, updates, means->at(i), {record, width_},
                  {record + width_, moment_floats_});
    stepped.is_finite = stepped.is_finite && AllFinite({record, floats - kCounters});
    record[floats - 1] = std::bit_cast<float>(updates);
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
