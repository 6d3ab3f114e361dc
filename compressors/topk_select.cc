#include "compressors/topk_select.h"

#include <algorithm>
#include <array>
#include <bit>
#include <functional>
#include <span>

#include "compressors/payload.h"
#include "kernels/topk_kernels.h"

namespace bdn {
namespace {

// Returns the bits of |value|, which rise with it.
uint32_t MagnitudeKey(float value) { return std::bit_cast<uint32_t>(value) & 0x7fffffffu; }

constexpr uint32_t kNonFiniteKey = 0x7f800000u;

// A threshold. It chooses every key above `key`, and the first `ties` keys equal to it.
struct Threshold {
  uint32_t key;
  size_t ties;
};

// Returns how many candidates there is room for: a guess aims at k, or for an exact choice at 1.25
// k, and may miss.
size_t CandidateCapacity(size_t n, size_t k) { return std::min(n, 2 * k + 8192); }

// A reader of p, wherever it lies by now: the first reading takes it where the source keeps a
// residual.
class Tiles {
 public:
  explicit Tiles(EncodeSource& source) : source_(source) {}
  const float* ReadFirst(size_t at, size_t count) {
    return source_.keeps_residual() ? source_.Take(at, count) : source_.Peek(at, count);
  }
  const float* Read(size_t at, size_t count) {
    return source_.keeps_residual() ? source_.Taken(at) : source_.Peek(at, count);
  }

 private:
  EncodeSource& source_;
};

// The sample is a run of kRun elements in every Period(n). A run is contiguous, so that it touches
// few cache lines.
constexpr size_t kRun = 64;
size_t Period(size_t n) {
  if (n >= size_t{1} << 19) return 4096;
  return n >= size_t{1} << 15 ? 512 : kRun;
}

uint32_t KeyOfRank(std::span<uint32_t> keys, size_t rank) {
  const auto at = keys.begin() + static_cast<ptrdiff_t>(rank);
  std::nth_element(keys.begin(), at, keys.end(), std::greater<>());
  return *at;
}

// Returns the key of the sample that about k elements of p reach, or for an exact choice a few
// more. REQUIRES: 0 < k, nothing of p was taken yet.
uint32_t GuessLeastKey(EncodeSource& source, size_t k, bool sampled) {
  const size_t n = source.n();
  const size_t period = Period(n);
  const ScratchArray<uint32_t> keys(DivideUp(n, period) * kRun);
  size_t size = 0;
  for (size_t at = 0; at < n; at += period) {
    const size_t count = std::min(kRun, n - at);
    const float* p = source.Peek(at, count);
    std::transform(p, p + count, keys.data() + size, MagnitudeKey);
    size += count;
  }
  // The rank for `sampled` is pinned by topk.h. An exact choice aims for more candidates than k,
  // since too few cost histograms of all of p.
  const size_t rank = sampled ? std::max<size_t>(1, k * size / n) - 1 : (k + k / 4) * size / n + 8;
  return KeyOfRank(keys.span().first(size), std::min(rank, size - 1));
}

// Reads p for the first time, and collects every element whose key is at least `least_key`. Returns
// false where there are more than `capacity` of them.
bool Collect(Tiles& tiles, size_t n, uint32_t least_key, size_t capacity, Selection* found) {
  found->size = 0;
  ForEachTile(0, n, [&](size_t at, size_t count) {
    const float* p = tiles.ReadFirst(at, count);
    // The other tiles are read all the same: every element must be taken.
    if (found->size > capacity) return;
    found->size +=
        CollectAtLeast(p, count, static_cast<uint32_t>(at), least_key, capacity - found->size,
                       found->index.data() + found->size, found->value.data() + found->size);
  });
  return found->size <= capacity;
}

// Returns the threshold that k of the candidates reach. REQUIRES: 0 < k <= candidates.
Threshold ThresholdAmong(std::span<const float> candidates, size_t k) {
  // Counts buckets of keys first, then looks at the keys of one bucket alone: an nth_element of all
  // keys costs several times as much.
  const ScratchArray<uint32_t> keys(candidates.size());
  std::transform(candidates.begin(), candidates.end(), keys.data(), MagnitudeKey);
  const auto [least, most] = std::minmax_element(keys.data(), keys.data() + keys.size());
  const uint32_t base = *least;
  constexpr int kBucketBits = 11;
  const int shift = std::max(0, static_cast<int>(std::bit_width(*most - base)) - kBucketBits);
  std::array<uint32_t, 1 << kBucketBits> counts{};
  for (const uint32_t key : keys.span()) ++counts[(key - base) >> shift];
  uint32_t bucket = (*most - base) >> shift;
  for (; counts[bucket] < k; --bucket) k -= counts[bucket];
  size_t size = 0;
  for (const uint32_t key : keys.span()) {
    // Every key is written, and the next one overwrites it unless it was of the bucket: this needs
    // no branch.
    keys[size] = key;
    size += (key - base) >> shift == bucket ? 1 : 0;
  }
  const std::span<uint32_t> among = keys.span().first(size);
  const uint32_t key = KeyOfRank(among, k - 1);
  const auto above =
      std::count_if(among.begin(), among.end(), [&](uint32_t other) { return other > key; });
  return {key, k - static_cast<size_t>(above)};
}

// The counts of all values of some bits of the keys. Each value has four counters, chosen by the
// element's index: a single one would wait for itself where neighbours are equal.
using Histogram = std::array<std::array<uint32_t, 4>, 2048>;
// Counts how often each value of `bits` bits above `shift` occurs among the keys that have `prefix`
// above those bits.
void Count(Tiles& tiles, size_t n, int shift, int bits, uint32_t prefix, Histogram* histogram) {
  const uint32_t mask = (1u << bits) - 1;
  ForEachTile(0, n, [&](size_t at, size_t count) {
    const float* p = tiles.Read(at, count);
    for (size_t i = 0; i < count; ++i) {
      const uint32_t key = MagnitudeKey(p[i]) >> shift;
      if (key >> bits == prefix) ++(*histogram)[key & mask][i % 4];
    }
  });
}

// Finds the threshold by going through the 31 bits of a key from the top, 11, 10 and 10 at a time.
// Each level counts only the keys that begin with the digits that were decided before.
Threshold ThresholdByHistogram(Tiles& tiles, size_t n, size_t k) {
  uint32_t prefix = 0;
  size_t left = k;
  int shift = 31;
  for (const int bits : {11, 10, 10}) {
    shift -= bits;
    Histogram histogram{};
    Count(tiles, n, shift, bits, prefix, &histogram);
    uint32_t digit = (1u << bits) - 1;
    const auto occurs = [&] {
      const auto& four = histogram[digit];
      return size_t{four[0]} + four[1] + four[2] + four[3];
    };
    for (; occurs() < left; --digit) left -= occurs();
    prefix = prefix << bits | digit;
  }
  return {prefix, left};
}

// Keeps the elements that `threshold` chooses, in place and in order.
void Choose(Threshold threshold, Selection* from) {
  size_t kept = 0;
  for (size_t i = 0; i < from->size; ++i) {
    const uint32_t key = MagnitudeKey(from->value[i]);
    const bool tie = key == threshold.key && threshold.ties > 0;
    threshold.ties -= tie ? 1 : 0;
    from->index[kept] = from->index[i];
    from->value[kept] = from->value[i];
    kept += tie || key > threshold.key ? 1 : 0;
  }
  from->size = kept;
}

// Reads all of p again, and collects the elements that `threshold` chooses.
void ChooseFromAll(Tiles& tiles, size_t n, Threshold threshold, Selection* chosen) {
  chosen->size = 0;
  ForEachTile(0, n, [&](size_t at, size_t count) {
    const float* p = tiles.Read(at, count);
    for (size_t i = 0; i < count; ++i) {
      const uint32_t key = MagnitudeKey(p[i]);
      if (key < threshold.key || (key == threshold.key && threshold.ties == 0)) continue;
      if (key == threshold.key) --threshold.ties;
      chosen->index[chosen->size] = static_cast<uint32_t>(at + i);
      chosen->value[chosen->size++] = p[i];
    }
  });
}

bool AllFinite(std::span<const float> values) {
  return std::all_of(values.begin(), values.end(),
                     [](float value) { return MagnitudeKey(value) < kNonFiniteKey; });
}

}  // namespace

Selection::Selection(size_t n, size_t k)
    : index(CandidateCapacity(n, k) + kCollectSlack),
      value(CandidateCapacity(n, k) + kCollectSlack) {}

absl::Status SelectTopK(EncodeSource& source, size_t k, bool sampled, Selection* chosen) {
  // Nothing may fail after the first Take, so with a residual all of the input is checked first.
  if (source.keeps_residual()) {
    if (absl::Status finite = source.CheckFinite(); !finite.ok()) return finite;
  }
  if (k == 0) return absl::OkStatus();
  const size_t n = source.n();
  const size_t capacity = CandidateCapacity(n, k);
  const bool all = capacity == n && !sampled;
  // The guess is at most the key of infinity, so that every element that is not finite becomes a
  // candidate. A guess of 0 would collect zeros, of which there may be too many: then everything
  // else is collected, and zeros are added afterwards.
  uint32_t guess = all ? 0 : std::min(GuessLeastKey(source, k, sampled), kNonFiniteKey);
  const bool all_but_zeros = guess == 0 && !all && !sampled;
  if (all_but_zeros) guess = 1;
  Tiles tiles(source);
  const bool collected = Collect(tiles, n, guess, capacity, chosen);
  const std::span<const float> candidates = chosen->value.span().first(chosen->size);
  // A bad element is among the candidates, unless there were too many to collect all of them.
  if (!source.keeps_residual() && (!collected || !AllFinite(candidates))) {
    if (absl::Status finite = source.CheckFinite(); !finite.ok()) return finite;
  }
  if (collected && sampled && candidates.size() <= 2 * k) return absl::OkStatus();
  if (collected && candidates.size() >= k) {
    Choose(ThresholdAmong(candidates, k), chosen);
  } else if (collected && all_but_zeros) {
    ChooseFromAll(tiles, n, {.key = 0, .ties = k - candidates.size()}, chosen);
  } else {
    ChooseFromAll(tiles, n, ThresholdByHistogram(tiles, n, k), chosen);
  }
  return absl::OkStatus();
}

}  // namespace bdn
