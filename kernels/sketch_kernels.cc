#include "kernels/sketch_kernels.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "kernels/clamp_to_finite.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/sketch_kernels.cc"
#include "hwy/foreach_target.h"
// The include above compiles this file once for each instruction set. It comes before all others of
// Highway, which a comment between them keeps so when they are sorted.
#include "hwy/highway.h"
#include "kernels/bit_words-inl.h"
#include "kernels/sketch_places-inl.h"

HWY_BEFORE_NAMESPACE();
namespace bdn {
namespace HWY_NAMESPACE {

// So many elements are a batch, whose places are found before the first of them is used.
constexpr size_t kBatch = 128;

// Returns a word with a bit for each of 32 elements that are neither 0 nor -0.
HWY_INLINE uint32_t NonZeroWord(const float* HWY_RESTRICT p) {
  const hn::RebindToUnsigned<Tag> d;
  Mask masks[kWordVectors];
  for (size_t v = 0; v < kWordVectors; ++v) {
    const auto bits = hn::BitCast(d, hn::LoadU(Tag(), p + v * kVectorLanes));
    // Shifted by one, as the sign does not count.
    masks[v] = hn::RebindMask(Tag(), hn::Ne(hn::Add(bits, bits), hn::Zero(d)));
  }
  return WordOf(masks);
}

size_t CollectNonZerosKernel(const float* HWY_RESTRICT p, size_t n, uint32_t first,
                             std::byte* HWY_RESTRICT words, uint32_t* HWY_RESTRICT index,
                             float* HWY_RESTRICT value) {
  size_t size = 0;
  size_t i = 0;
  for (; i + 2 * kWord <= n; i += 2 * kWord) {
    const uint32_t low = NonZeroWord(p + i);
    const uint32_t high = NonZeroWord(p + i + kWord);
    StoreWord(words, i, low);
    StoreWord(words, i + kWord, high);
    const uint64_t word = uint64_t{high} << 32 | low;
    size += AppendOnes(word, static_cast<uint32_t>(i), index + size);
  }
  for (; i < n; i += kWord) {
    float last[kWord] = {};
    std::memcpy(last, p + i, std::min(kWord, n - i) * sizeof(float));
    const uint32_t word = NonZeroWord(last);
    StoreWord(words, i, word);
    size += AppendOnes(word, static_cast<uint32_t>(i), index + size);
  }
  for (size_t k = 0; k < size; ++k) {
    value[k] = p[index[k]];
    index[k] += first;
  }
  return size;
}

size_t CountOnesKernel(const std::byte* words, size_t num_words) {
  size_t count = 0;
  size_t i = 0;
  for (; i + 2 <= num_words; i += 2) {
    uint64_t word;
    std::memcpy(&word, words + i * 4, sizeof(word));
    count += static_cast<size_t>(std::popcount(word));
  }
  if (i < num_words) count += static_cast<size_t>(std::popcount(LoadWord(words, i * kWord)));
  return count;
}

size_t CollectOnesKernel(const std::byte* words, size_t num_words, uint32_t first,
                         uint32_t* HWY_RESTRICT index) {
  size_t size = 0;
  size_t i = 0;
  for (; i + 2 <= num_words; i += 2, first += 2 * kWord) {
    uint64_t word;
    std::memcpy(&word, words + i * 4, sizeof(word));
    size += AppendOnes(word, first, index + size);
  }
  if (i < num_words) size += AppendOnes(LoadWord(words, i * kWord), first, index + size);
  return size;
}

// Calls use(at, count, index of the batch). The last batch need not be whole: its other indices are
// 0.
template <class Use>
HWY_INLINE void ForEachBatch(const uint32_t* HWY_RESTRICT index, size_t n, const Use& use) {
  size_t at = 0;
  for (; at + kBatch <= n; at += kBatch) use(at, kBatch, index + at);
  if (at == n) return;
  uint32_t last[kBatch] = {};
  std::memcpy(last, index + at, (n - at) * sizeof(uint32_t));
  use(at, n - at, last);
}

void AddToCellsKernel(const SketchPlaces& places, const uint32_t* HWY_RESTRICT index,
                      const float* HWY_RESTRICT value, size_t n, std::byte* HWY_RESTRICT cells) {
  HWY_ALIGN uint32_t cell[kBatch];
  HWY_ALIGN uint32_t sign[kBatch];
  for (uint32_t row = 0; row < places.rows; ++row) {
    const SketchRow places_in_row(places, row, 0);
    std::byte* const to = cells + row * places.width * sizeof(float);
    ForEachBatch(index, n, [&](size_t at, size_t count, const uint32_t* batch) HWY_ATTR {
      places_in_row.Find(batch, kBatch, cell, sign);
      for (size_t k = 0; k < count; ++k) {
        const float sum = LoadCell(to, cell[k]) + Signed(value[at + k], sign[k]);
        StoreCell(to, cell[k], ClampToFinite(sum));
      }
    });
  }
}

// Sorts the estimates of each element by a network, as far as their median needs.
template <size_t kRows>
HWY_INLINE void TakeMedians(float (&estimate)[kRows][kBatch]) {
  for (size_t end = kRows; end > kRows / 2; --end) {
    for (size_t row = 0; row + 1 < end; ++row) {
      for (size_t k = 0; k < kBatch; ++k) {
        const float a = estimate[row][k];
        const float b = estimate[row + 1][k];
        estimate[row][k] = std::min(a, b);
        estimate[row + 1][k] = std::max(a, b);
      }
    }
  }
}

template <size_t kRows>
void MedianOfRows(const SketchPlaces& places, const std::byte* cells,
                  const uint32_t* HWY_RESTRICT index, size_t n, float* HWY_RESTRICT value) {
  HWY_ALIGN uint32_t cell[kBatch];
  HWY_ALIGN uint32_t sign[kBatch];
  HWY_ALIGN float estimate[kRows][kBatch] = {};
  ForEachBatch(index, n, [&](size_t at, size_t count, const uint32_t* batch) HWY_ATTR {
    for (uint32_t row = 0; row < kRows; ++row) {
      SketchRow(places, row, 0).Find(batch, kBatch, cell, sign);
      const std::byte* const from = cells + row * places.width * sizeof(float);
      // Never -0, so that a median is unique.
      for (size_t k = 0; k < count; ++k) {
        estimate[row][k] = 0.0f + Signed(LoadCell(from, cell[k]), sign[k]);
      }
    }
    TakeMedians(estimate);
    std::memcpy(value + at, estimate[kRows / 2], count * sizeof(float));
  });
}

void MedianOfCellsKernel(const SketchPlaces& places, const std::byte* cells, const uint32_t* index,
                         size_t n, float* value) {
  switch (places.rows) {
    case 1:
      return MedianOfRows<1>(places, cells, index, n, value);
    case 3:
      return MedianOfRows<3>(places, cells, index, n, value);
    case 5:
      return MedianOfRows<5>(places, cells, index, n, value);
    default:
      return MedianOfRows<7>(places, cells, index, n, value);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace bdn
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace bdn {

HWY_EXPORT(CollectNonZerosKernel);
HWY_EXPORT(CountOnesKernel);
HWY_EXPORT(CollectOnesKernel);
HWY_EXPORT(AddToCellsKernel);
HWY_EXPORT(MedianOfCellsKernel);

size_t CollectNonZeros(const float* p, size_t n, uint32_t first, std::byte* words, uint32_t* index,
                       float* value) {
  return HWY_DYNAMIC_DISPATCH(CollectNonZerosKernel)(p, n, first, words, index, value);
}
size_t CountOnes(const std::byte* words, size_t num_words) {
  return HWY_DYNAMIC_DISPATCH(CountOnesKernel)(words, num_words);
}
size_t CollectOnes(const std::byte* words, size_t num_words, uint32_t first, uint32_t* index) {
  return HWY_DYNAMIC_DISPATCH(CollectOnesKernel)(words, num_words, first, index);
}
void AddToCells(const SketchPlaces& places, const uint32_t* index, const float* value, size_t n,
                std::byte* cells) {
  HWY_DYNAMIC_DISPATCH(AddToCellsKernel)(places, index, value, n, cells);
}
void MedianOfCells(const SketchPlaces& places, const std::byte* cells, const uint32_t* index,
                   size_t n, float* value) {
  HWY_DYNAMIC_DISPATCH(MedianOfCellsKernel)(places, cells, index, n, value);
}

}  // namespace bdn
#endif  // HWY_ONCE
