#include "worker/rows/row_set.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <tuple>
#include <utility>

#include "common/wire/packed_ids.h"

namespace bdn {
namespace {

// Lists of fewer entries are sorted by comparing: counting would take longer than the entries do.
constexpr size_t kFew = 256;
// The rows of a batch lie anywhere in memory, so they are brought to the cache so far ahead.
constexpr size_t kAhead = 8;

struct Entry {
  uint64_t id;
  uint32_t bucket;
  uint32_t position;
};

// Sorts entries, whose positions rise, by id; those of one id stay in their order. It counts byte
// by byte, the lowest first, and leaves out those that all ids share. `spare` is of the same size.
void SortById(std::span<Entry> entries, std::span<Entry> spare) {
  if (entries.size() < kFew) {
    std::ranges::sort(entries, [](const Entry& a, const Entry& b) {
      return std::tie(a.id, a.position) < std::tie(b.id, b.position);
    });
    return;
  }
  constexpr int kByte = 8;
  uint64_t varies = 0;
  for (const Entry& entry : entries) varies |= entry.id ^ entries[0].id;
  std::span<Entry> from = entries;
  std::span<Entry> to = spare;
  for (int shift = 0; shift < 64; shift += kByte) {
    const auto digit = [shift](const Entry& entry) { return entry.id >> shift & 0xff; };
    if ((varies >> shift & 0xff) == 0) continue;
    std::array<uint32_t, 256> places{};
    for (const Entry& entry : from) ++places[digit(entry)];
    std::exclusive_scan(places.begin(), places.end(), places.begin(), uint32_t{0});
    for (const Entry& entry : from) to[places[digit(entry)]++] = entry;
    std::swap(from, to);
  }
  if (from.data() != entries.data()) std::ranges::copy(from, entries.begin());
}

// Begins to bring a row to the cache.
void Prefetch(const float* row, size_t width) {
  constexpr size_t kLine = 64 / sizeof(float);
  for (size_t i = 0; i < width; i += kLine) __builtin_prefetch(row + i);
}

}  // namespace

RowSet::RowSet(std::span<const uint64_t> ids, uint32_t buckets) {
  if (ids.empty()) return;
  // Buckets are told apart first, by counting, so that what is sorted is short.
  begins_.assign(buckets + 1, 0);
  std::vector<size_t> ends(buckets + 1, 0);
  std::vector<Entry> all(ids.size());
  for (size_t i = 0; i < ids.size(); ++i) {
    all[i] = {ids[i], BucketOf(ids[i], buckets), static_cast<uint32_t>(i)};
    ++ends[all[i].bucket + 1];
  }
  for (uint32_t bucket = 0; bucket < buckets; ++bucket) ends[bucket + 1] += ends[bucket];
  std::vector<Entry> sorted(all.size());
  std::vector<size_t> next(ends.begin(), ends.end() - 1);
  for (const Entry& entry : all) sorted[next[entry.bucket]++] = entry;
  ids_.reserve(ids.size());
  positions_.reserve(ids.size());
  for (uint32_t bucket = 0; bucket < buckets; ++bucket) {
    begins_[bucket] = ids_.size();
    const std::span<Entry> part(sorted.data() + ends[bucket], ends[bucket + 1] - ends[bucket]);
    // The entries before they were told apart are of no more use.
    SortById(part, std::span(all).subspan(ends[bucket], part.size()));
    for (size_t i = 0; i < part.size(); ++i) {
      if (i == 0 || part[i].id != ids_.back()) {
        firsts_.push_back(positions_.size());
        ids_.push_back(part[i].id);
      }
      positions_.push_back(part[i].position);
    }
  }
  begins_[buckets] = ids_.size();
  firsts_.push_back(positions_.size());
}

std::span<const uint64_t> RowSet::ids(uint32_t bucket) const {
  if (begins_.empty()) return {};
  return std::span(ids_).subspan(begins_[bucket], begins_[bucket + 1] - begins_[bucket]);
}

std::span<const float> MergeRows(const RowSet& set, size_t i, const float* rows,
                                 std::span<float> scratch) {
  const size_t width = scratch.size();
  const std::span<const uint32_t> positions = set.positions(i);
  const std::span<const uint32_t> rest = set.positions_from(i);
  const size_t end = std::min(rest.size(), positions.size() + kAhead);
  for (size_t k = kAhead; k < end; ++k) Prefetch(rows + rest[k] * width, width);
  const float* const first = rows + positions[0] * width;
  if (positions.size() == 1) return {first, width};
  std::copy_n(first, width, scratch.data());
  for (const uint32_t position : positions.subspan(1)) {
    const float* const more = rows + position * width;
    for (size_t j = 0; j < width; ++j) scratch[j] += more[j];
  }
  return scratch;
}

}  // namespace bdn
