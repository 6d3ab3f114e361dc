#include "compressors/topk_select.h"

#include <algorithm>
#include <array>
#include <bit>
#include <functional>

#include "compressors/kernels/float_kernels.h"
#include "compressors/kernels/topk_kernels.h"
#include "compressors/payload.h"

namespace bdn {
namespace {

// The bits of |value|: rises with it.
uint32_t MagnitudeKey(float value) { return std::bit_cast<uint32_t>(value) & 0x7fffffffu; }

// What remains to be chosen: every key above `key`, and the first `ties` equal to it.
struct Threshold {
  uint32_t key;
  size_t ties;
};

size_t CandidateCapacity(size_t k) { return 2 * k + 8192; }

// A key that about k to 2k elements reach, from one element in `kStride`.
uint32_t GuessLeastKey(ConstView x, float scale, size_t k) {
  constexpr size_t kStride = 61;  // no power of two: tensors have rows
  std::vector<uint32_t> keys;
  keys.reserve(x.n / kStride + 1);
  for (size_t i = 0; i < x.n; i += kStride) {
    float value;
    ConvertScaled(x.Sub(i, 1), scale, MutableView{&value, DType::kFloat32, 1});
    keys.push_back(MagnitudeKey(value));
  }
  // Half as many again as k, and some more where the sample holds few.
  const size_t rank = std::min(keys.size() - 1, (k + k / 2) / kStride + 8);
  std::nth_element(keys.begin(), keys.begin() + static_cast<ptrdiff_t>(rank), keys.end(),
                   std::greater<>());
  return keys[rank];
}

// Every element whose key is at least `least_key`, or nothing when there are more than `capacity`.
bool Collect(TileReader& tiles, size_t n, uint32_t least_key, size_t capacity, Selection* found) {
  found->index.resize(capacity + kCollectSlack);
  found->value.resize(capacity + kCollectSlack);
  size_t size = 0;
  for (size_t at = 0; at < n && size <= capacity; at += TileReader::kTile) {
    const size_t count = std::min(TileReader::kTile, n - at);
    size += CollectAtLeast(tiles.Read(at, count), count, static_cast<uint32_t>(at), least_key,
                           capacity - size, found->index.data() + size, found->value.data() + size);
  }
  if (size > capacity) return false;
  found->index.resize(size);
  found->value.resize(size);
  return true;
}

// REQUIRES: k <= candidates.
Threshold ThresholdAmong(const std::vector<float>& candidates, size_t k) {
  std::vector<uint32_t> keys(candidates.size());
  std::transform(candidates.begin(), candidates.end(), keys.begin(), MagnitudeKey);
  const auto last = keys.begin() + static_cast<ptrdiff_t>(k - 1);
  std::nth_element(keys.begin(), last, keys.end(), std::greater<>());
  const uint32_t key = *last;
  const auto above = std::count_if(keys.begin(), last, [&](uint32_t other) { return other > key; });
  return {key, k - static_cast<size_t>(above)};
}

// How often each value of `bits` bits above `shift` occurs among keys with `prefix` above those.
// Four counters a value, by index: one alone would wait for itself where neighbours are equal.
using Histogram = std::array<std::array<uint32_t, 4>, 2048>;
void Count(TileReader& tiles, size_t n, int shift, int bits, uint32_t prefix,
           Histogram* histogram) {
  const uint32_t mask = (1u << bits) - 1;
  ForEachTile(0, n, [&](size_t at, size_t count) {
    const float* p = tiles.Read(at, count);
    for (size_t i = 0; i < count; ++i) {
      const uint32_t key = MagnitudeKey(p[i]) >> shift;
      if (key >> bits == prefix) ++(*histogram)[key & mask][i % 4];
    }
  });
}

// The 31 bits of a key, from the top: 11, 10 and 10. Each level looks where the one before it
// ended.
Threshold ThresholdByHistogram(TileReader& tiles, size_t n, size_t k) {
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

// Keeps what `threshold` chooses, in place and in order.
void Choose(Threshold threshold, Selection* from) {
  size_t kept = 0;
  for (size_t i = 0; i < from->index.size(); ++i) {
    const uint32_t key = MagnitudeKey(from->value[i]);
    if (key < threshold.key) continue;
    if (key == threshold.key) {
      if (threshold.ties == 0) continue;
      --threshold.ties;
    }
    from->index[kept] = from->index[i];
    from->value[kept] = from->value[i];
    ++kept;
  }
  from->index.resize(kept);
  from->value.resize(kept);
}

Selection ChooseFromAll(TileReader& tiles, size_t n, size_t k, Threshold threshold) {
  Selection chosen;
  chosen.index.reserve(k);
  chosen.value.reserve(k);
  ForEachTile(0, n, [&](size_t at, size_t count) {
    const float* p = tiles.Read(at, count);
    for (size_t i = 0; i < count; ++i) {
      const uint32_t key = MagnitudeKey(p[i]);
      if (key < threshold.key || (key == threshold.key && threshold.ties == 0)) continue;
      if (key == threshold.key) --threshold.ties;
      chosen.index.push_back(static_cast<uint32_t>(at + i));
      chosen.value.push_back(p[i]);
    }
  });
  return chosen;
}

}  // namespace

Selection SelectTopK(ConstView x, float scale, size_t k) {
  Selection chosen;
  if (k == 0) return chosen;
  TileReader tiles(x, scale);
  const size_t capacity = std::min(x.n, CandidateCapacity(k));
  const uint32_t guess = capacity == x.n ? 0 : GuessLeastKey(x, scale, k);
  if (Collect(tiles, x.n, guess, capacity, &chosen) && chosen.index.size() >= k) {
    Choose(ThresholdAmong(chosen.value, k), &chosen);
    return chosen;
  }
  return ChooseFromAll(tiles, x.n, k, ThresholdByHistogram(tiles, x.n, k));
}

}  // namespace bdn
