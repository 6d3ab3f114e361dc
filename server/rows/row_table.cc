#include "server/rows/row_table.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <tuple>

#include "common/base/status.h"
#include "common/wire/message.h"
#include "kernels/row_kernels.h"

namespace bdn {
namespace {

// The floats behind a record's values and moments, whose bits are its RowCounters.
constexpr size_t kCounters = kRowCounters;
// A scan looks at so many places.
constexpr uint64_t kPlacesAScan = uint64_t{1} << 16;
// A full cell keeps so many tenths of what it may have, so that it is not full at each new row.
constexpr size_t kKeptTenths = 9;
// Rows that outlived their time are looked for once in so many updates, or once in that time where
// it is shorter.
constexpr uint64_t kUpdatesASweep = 1000;
// So many removed ids are kept before any is forgotten.
constexpr size_t kRemovedKept = 1024;
// Records are brought to the cache so many rows before they are read. A row of 64 elements with
// Adagrad's sums has nine lines, and the machine fetches what follows of an array by itself.
constexpr size_t kRowsAhead = 4;
// A candidate takes about so many bytes, its places in the index and in a cell among them.
constexpr size_t kCandidateBytes = 40;

uint32_t Saturated(uint64_t count) {
  constexpr uint64_t kMost = std::numeric_limits<uint32_t>::max();
  return static_cast<uint32_t>(std::min(count, kMost));
}

RowCounters CountersIn(const float* counters) {
  return {std::bit_cast<uint32_t>(counters[0]), std::bit_cast<uint32_t>(counters[1])};
}

void WriteCounters(const RowCounters& value, float* counters) {
  counters[0] = std::bit_cast<float>(value.updates);
  counters[1] = std::bit_cast<float>(value.changed);
}

// Begins to bring an array to the cache; it may be null.
void Prefetch(const float* array, size_t floats) {
  constexpr size_t kLine = 64 / sizeof(float);
  for (size_t i = 0; array != nullptr && i < floats; i += kLine) __builtin_prefetch(array + i);
}

bool AllFinite(std::span<const float> values) {
  return std::ranges::all_of(values, [](float value) { return std::isfinite(value); });
}

}  // namespace

size_t RowSums::PlaceOf(uint64_t id) {
  const auto [place, is_new] = places_.try_emplace(id, ids_.size());
  if (is_new) ids_.push_back(id);
  return place->second;
}

float* RowSums::Of(uint64_t id) {
  const size_t place = PlaceOf(id);
  Grow();
  return sums_.data() + place * width_;
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

bool RowSums::Scale(float factor) { return ScaleFinite(factor, sums_.data(), sums_.size()); }

RowTable::RowTable(const InitialValues& initial, const RowRule* rule, size_t width,
                   size_t moment_floats)
    : initial_(initial), rule_(rule), width_(width), moment_floats_(moment_floats) {
  Clear(0);
}

RowTable::RowTable(const RowTable& other)
    : initial_(other.initial_),
      rule_(other.rule_),
      width_(other.width_),
      moment_floats_(other.moment_floats_),
      store_(other.store_->Clone()),
      candidates_(other.candidates_->Clone()),
      removed_(other.removed_->Clone()),
      row_cells_(other.row_cells_),
      candidate_cells_(other.candidate_cells_),
      updates_(other.updates_),
      complete_since_(other.complete_since_) {}

size_t RowTable::bytes() const {
  size_t bytes = store_->bytes() + candidates_->bytes() + removed_->bytes();
  for (const auto& cells : {&row_cells_, &candidate_cells_}) {
    if (cells->has_value()) bytes += (*cells)->bytes();
  }
  return bytes;
}

size_t RowTable::BytesOfNew(size_t rows, size_t candidates) const {
  constexpr size_t kOfTheIndex = 20;  // its id among them
  const auto beyond = [](size_t count, const RowStore& store) {
    const size_t left = store.places() - store.size();
    return count > left ? count - left : 0;
  };
  return beyond(rows, *store_) * (record_bytes() + kOfTheIndex) +
         beyond(candidates, *candidates_) * kCandidateBytes;
}

const RowStore& RowTable::StoreOf(RowList list) const {
  switch (list) {
    case RowList::kRows:
      break;
    case RowList::kCandidates:
      return *candidates_;
    case RowList::kRemoved:
      return *removed_;
  }
  return *store_;
}

void RowTable::Read(uint64_t id, std::span<float> row) const {
  const float* const record = std::as_const(*store_).Find(id);
  if (record == nullptr) return WriteInitialRow(initial_, id, row);
  std::copy_n(record, width_, row.data());
}

absl::Status RowTable::ReadAll(
    std::span<const uint64_t> ids,
    const std::function<absl::Status(std::span<const float> row)>& take) const {
  std::vector<float*> stored(ids.size());
  store_->FindAll(ids, stored);
  std::vector<float> initial(width_);
  for (size_t i = 0; i < ids.size(); ++i) {
    if (i + kRowsAhead < ids.size()) Prefetch(stored[i + kRowsAhead], width_);
    if (stored[i] == nullptr) WriteInitialRow(initial_, ids[i], initial);
    BDN_RETURN_IF_ERROR(take({stored[i] == nullptr ? initial.data() : stored[i], width_}));
  }
  return absl::OkStatus();
}

size_t RowTable::CountNew(std::span<const uint64_t> ids) const {
  const RowStore& store = *store_;
  return static_cast<size_t>(
      std::ranges::count_if(ids, [&](uint64_t id) { return store.Find(id) == nullptr; }));
}

float* RowTable::FindOrInsert(uint64_t id) {
  float* const record = store_->Find(id);
  if (record != nullptr) return record;
  EraseCandidate(id);
  if (removed_->size() > 0) removed_->Erase(id);
  if (row_cells_.has_value()) row_cells_->Add(id);
  return store_->Insert(id);
}

void RowTable::Set(uint64_t id, std::span<const float> row) {
  float* const record = FindOrInsert(id);
  std::ranges::copy(row, record);
  rule_->Begin({record + width_, moment_floats_});
  StoreCounters(/*row_updates=*/0, record);
}

void RowTable::StoreCounters(uint32_t row_updates, float* record) const {
  WriteCounters({row_updates, Saturated(updates_ + 1)}, record + CountersAt(RowList::kRows));
}

RowTable::Scanned RowTable::Scan(RowList list, uint64_t place, uint64_t since, size_t most) const {
  Scanned scanned;
  const size_t at = CountersAt(list);
  scanned.next = StoreOf(list).Visit(place, kPlacesAScan, [&](uint64_t id, const float* record) {
    if (CountersIn(record + at).changed > since) scanned.records.emplace_back(id, record);
    return scanned.records.size() < most;
  });
  if (scanned.next >= places(list)) scanned.next = 0;
  std::ranges::sort(scanned.records);
  return scanned;
}

absl::Status RowTable::CheckRecord(RowList list, ByteSpan record, uint64_t updates) const {
  std::vector<float> floats(CountersAt(list));
  DecodeFloats(record.first(floats.size() * sizeof(float)), floats);
  if (!AllFinite(floats)) return InvalidArgument("an element that is not finite");
  if (list == RowList::kRows && !rule_->Accepts(std::span(floats).subspan(width_))) {
    return InvalidArgument("moments that the rule cannot have left");
  }
  const RowCounters counters = CountersOf(record);
  if (list == RowList::kRemoved && counters.updates > 1) {
    return InvalidArgument("%d where 0 or 1 says whether it was a row", counters.updates);
  }
  // A row that was set behind the last update counts as changed in the next.
  if (counters.updates > updates || counters.changed > updates + 1) {
    return InvalidArgument("%d updates, the last at %d, in a table of %d updates", counters.updates,
                           counters.changed, updates);
  }
  return absl::OkStatus();
}

void RowTable::SetRecord(RowList list, uint64_t id, ByteSpan record) {
  if (list == RowList::kRows) {
    std::memcpy(FindOrInsert(id), record.data(), record.size());
  } else if (list == RowList::kCandidates) {
    EraseRow(id);
    if (initial_.spec.admit > 1) SetCandidate(id, CountersOf(record));
  } else {
    EraseRow(id);
    EraseCandidate(id);
    NoteRemoved(id, CountersOf(record));
  }
}

void RowTable::Clear(uint64_t updates) {
  const TableSpec& spec = initial_.spec;
  store_ = MakeMemoryRowStore(width_ + moment_floats_ + kCounters);
  candidates_ = MakeMemoryRowStore(kCounters);
  removed_ = MakeMemoryRowStore(kCounters);
  const auto make = [&](std::optional<RowCells>* cells, bool are_needed) {
    cells->reset();
    if (spec.max_rows != 0 && are_needed) {
      cells->emplace(spec.Cells(), spec.max_rows / spec.Cells());
    }
  };
  make(&row_cells_, spec.evict != TableSpec::Evict::kNone);
  make(&candidate_cells_, spec.admit > 1);
  updates_ = complete_since_ = updates;
}

// ---- What comes and goes

void RowTable::SetCandidate(uint64_t id, const RowCounters& counters) {
  float* record = candidates_->Find(id);
  if (record == nullptr) {
    record = candidates_->Insert(id);
    if (candidate_cells_.has_value()) candidate_cells_->Add(id);
  }
  WriteCounters(counters, record);
}

void RowTable::CountCandidate(uint64_t id) {
  const float* const record = candidates_->Find(id);
  const uint32_t before = record == nullptr ? 0 : CountersIn(record).updates;
  SetCandidate(id, {before + 1, Saturated(updates_ + 1)});
}

bool RowTable::EraseRow(uint64_t id) {
  if (!store_->Erase(id)) return false;
  if (row_cells_.has_value()) row_cells_->Remove(id);
  return true;
}

bool RowTable::EraseCandidate(uint64_t id) {
  if (candidates_->size() == 0 || !candidates_->Erase(id)) return false;
  if (candidate_cells_.has_value()) candidate_cells_->Remove(id);
  return true;
}

void RowTable::NoteRemoved(uint64_t id, const RowCounters& counters) {
  if (counters.changed <= complete_since_) return;
  float* record = removed_->Find(id);
  uint32_t was_row = counters.updates;
  // A row that was removed, and then a candidate, which is removed now.
  if (record != nullptr) was_row |= CountersIn(record).updates;
  if (record == nullptr) record = removed_->Insert(id);
  WriteCounters({was_row, counters.changed}, record);
}

void RowTable::RemoveRow(uint64_t id) {
  EraseRow(id);
  NoteRemoved(id, {.updates = 1, .changed = Saturated(updates_)});
}

void RowTable::RemoveCandidate(uint64_t id) {
  EraseCandidate(id);
  NoteRemoved(id, {.updates = 0, .changed = Saturated(updates_)});
}

std::vector<uint64_t> RowTable::Lowest(RowList list, std::span<const uint64_t> ids,
                                       size_t count) const {
  // Equal scores are told apart by the time or the number of updates, and then by the id: no two
  // are alike, so that the order in which ids came does not matter.
  using Score = std::tuple<uint32_t, uint32_t, uint64_t>;
  const bool by_updates = list == RowList::kRows && initial_.spec.evict == TableSpec::Evict::kLfu;
  std::vector<Score> scores;
  scores.reserve(ids.size());
  for (const uint64_t id : ids) {
    const RowCounters of = CountersIn(StoreOf(list).Find(id) + CountersAt(list));
    scores.push_back(by_updates ? Score(of.updates, of.changed, id)
                                : Score(of.changed, of.updates, id));
  }
  const auto end = scores.begin() + static_cast<ptrdiff_t>(count);
  std::ranges::nth_element(scores, end);
  std::vector<uint64_t> lowest(count);
  std::transform(scores.begin(), end, lowest.begin(),
                 [](const Score& score) { return std::get<uint64_t>(score); });
  return lowest;
}

std::vector<uint64_t> RowTable::Outlived(RowList list) const {
  std::vector<uint64_t> outlived;
  const size_t at = CountersAt(list);
  const uint64_t now = Saturated(updates_);
  const RowStore& store = StoreOf(list);
  (void)store.Visit(0, store.places(), [&](uint64_t id, const float* record) {
    if (CountersIn(record + at).changed + initial_.spec.ttl <= now) outlived.push_back(id);
    return true;
  });
  return outlived;
}

size_t RowTable::EndUpdate() {
  ++updates_;
  const size_t before = rows();
  const auto give_up = [this](RowList list, std::optional<RowCells>* cells, auto remove) {
    if (!cells->has_value()) return;
    for (const uint32_t cell : (*cells)->TakeFull()) {
      const std::span<const uint64_t> ids = (*cells)->ids(cell);
      const size_t kept = (*cells)->most() * kKeptTenths / 10;
      for (const uint64_t id : Lowest(list, ids, ids.size() - kept)) remove(id);
    }
  };
  const auto remove_row = [this](uint64_t id) { RemoveRow(id); };
  const auto remove_candidate = [this](uint64_t id) { RemoveCandidate(id); };
  // Before the rows of full cells, so that nothing young is removed where old rows make room.
  if (const uint64_t ttl = initial_.spec.ttl;
      ttl != 0 && updates_ % std::min(ttl, kUpdatesASweep) == 0) {
    for (const uint64_t id : Outlived(RowList::kRows)) remove_row(id);
    for (const uint64_t id : Outlived(RowList::kCandidates)) remove_candidate(id);
  }
  give_up(RowList::kRows, &row_cells_, remove_row);
  give_up(RowList::kCandidates, &candidate_cells_, remove_candidate);
  ForgetRemoved();
  return before - rows();
}

void RowTable::ForgetRemoved() {
  // A save of what changed since is of no use where more was removed than is there.
  if (removed_->size() <= std::max(kRemovedKept, rows() + candidates())) return;
  std::vector<std::pair<uint32_t, uint64_t>> removed;
  removed.reserve(removed_->size());
  (void)std::as_const(*removed_).Visit(0, removed_->places(),
                                       [&](uint64_t id, const float* record) {
                                         removed.emplace_back(CountersIn(record).changed, id);
                                         return true;
                                       });
  const auto middle = removed.begin() + static_cast<ptrdiff_t>(removed.size() / 2);
  std::ranges::nth_element(removed, middle);
  complete_since_ = middle->first;
  for (const auto& [changed, id] : removed) {
    if (changed <= complete_since_) removed_->Erase(id);
  }
}

// ---- Steps

void RowTable::Load(uint64_t id, const float* stored, float* record) const {
  const size_t floats = width_ + moment_floats_ + kCounters;
  if (stored != nullptr) {
    std::copy_n(stored, floats, record);
    return;
  }
  WriteInitialRow(initial_, id, {record, width_});
  rule_->Begin({record + width_, moment_floats_});
  StoreCounters(/*row_updates=*/0, record);
}

bool RowTable::IsCandidate(uint64_t id, Stepped* stepped) const {
  if (initial_.spec.admit <= 1) return false;
  const float* const counted = std::as_const(*candidates_).Find(id);
  const uint64_t before = counted == nullptr ? 0 : CountersIn(counted).updates;
  if (before + 1 >= initial_.spec.admit) return false;
  stepped->candidates.push_back(id);
  stepped->added_candidates += counted == nullptr ? 1 : 0;
  return true;
}

RowTable::Stepped RowTable::Step(RowSums* means, float learning_rate) const {
  const size_t floats = width_ + moment_floats_ + kCounters;
  const std::vector<uint64_t>& ids = means->ids();
  Stepped stepped;
  stepped.ids.reserve(ids.size());
  stepped.stored.reserve(ids.size());
  stepped.records = std::make_unique_for_overwrite<float[]>(ids.size() * floats);
  const RowFacts facts = rule_->FactsOf(learning_rate, updates_ + 1);
  std::vector<float*> found(ids.size());
  store_->FindAll(ids, found);
  for (size_t i = 0; i < ids.size(); ++i) {
    if (i + kRowsAhead < ids.size()) Prefetch(found[i + kRowsAhead], floats);
    if (found[i] == nullptr && IsCandidate(ids[i], &stepped)) continue;
    stepped.added += found[i] == nullptr ? 1 : 0;
    float* const record = stepped.records.get() + stepped.ids.size() * floats;
    stepped.ids.push_back(ids[i]);
    stepped.stored.push_back(found[i]);
    Load(ids[i], found[i], record);
    const uint32_t updates = std::bit_cast<uint32_t>(record[floats - kCounters]) + 1;
    const bool is_finite = rule_->Update(facts, updates, means->at(i), {record, width_},
                                         {record + width_, moment_floats_});
    stepped.is_finite = stepped.is_finite && is_finite;
    StoreCounters(updates, record);
  }
  return stepped;
}

size_t RowTable::Take(const Stepped& stepped) {
  const size_t floats = width_ + moment_floats_ + kCounters;
  for (size_t i = 0; i < stepped.ids.size(); ++i) {
    float* const stored = stepped.stored[i];
    std::copy_n(stepped.records.get() + i * floats, floats,
                stored != nullptr ? stored : FindOrInsert(stepped.ids[i]));
  }
  for (const uint64_t id : stepped.candidates) CountCandidate(id);
  return EndUpdate();
}

}  // namespace bdn
