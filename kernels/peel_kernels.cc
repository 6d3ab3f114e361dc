#include "kernels/peel_kernels.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "hwy/cache_control.h"
#include "kernels/clamp_to_finite.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/peel_kernels.cc"
#include "hwy/foreach_target.h"
// The include above compiles this file once for each instruction set. It comes before all others of
// Highway, which a comment between them keeps so when they are sorted.
#include "hwy/highway.h"
#include "kernels/bit_words-inl.h"
#include "kernels/clamp_to_finite-inl.h"
#include "kernels/sketch_places-inl.h"

HWY_BEFORE_NAMESPACE();
namespace bdn {
namespace HWY_NAMESPACE {

constexpr size_t kRows = 3;

// The place of one element in a row. A cell is counted over all rows.
struct Place {
  size_t cell;
  uint32_t sign;
};
HWY_INLINE Place PlaceOf(const SketchPlaces& places, uint32_t index, size_t row) {
  const uint32_t word = places.draw.Word(static_cast<uint32_t>(kRows * index + row));
  return {row * places.width + static_cast<size_t>(uint64_t{word} * places.width >> 32),
          word << 31};
}

// The cells of a sketch in the plain form, for any number of elements, which are taken out one
// after the other. Owned by one call.
class WideCells {
 public:
  WideCells(const SketchPlaces& places, const std::byte* from, const uint32_t* index, size_t n,
            const PeelScratch& scratch)
      : places_(places),
        index_(index),
        cells_(reinterpret_cast<Cell*>(scratch.cells)),
        queue_(scratch.queue) {
    for (size_t c = 0; c < kRows * places.width; ++c) cells_[c] = {LoadCell(from, c), 0, 0};
    for (size_t rank = 0; rank < n; ++rank) {
      for (size_t row = 0; row < kRows; ++row) {
        Cell& cell = cells_[PlaceOf(places_, index_[rank], row).cell];
        ++cell.count;
        cell.ranks ^= static_cast<uint32_t>(rank);
      }
    }
  }

  // Finds the elements that are alone in a cell, one after the other, and returns how many it
  // found.
  size_t FindSingles(float* HWY_RESTRICT value) {
    size_t end = 0;
    for (size_t c = 0; c < kRows * places_.width; ++c) {
      if (cells_[c].count == 1) queue_[end++] = static_cast<uint32_t>(c);
    }
    size_t found = 0;
    // A cell's count only falls, so it comes to 1 once at most, and the queue needs no more than
    // one entry for each cell.
    for (size_t head = 0; head < end; ++head) {
      const Cell single = cells_[queue_[head]];
      // The element may have been found from another cell since this one was queued.
      if (single.count != 1) continue;
      const uint32_t rank = single.ranks;
      const Place from = PlaceOf(places_, index_[rank], queue_[head] / places_.width);
      value[rank] = 0.0f + Signed(single.value, from.sign);
      for (size_t row = 0; row < kRows; ++row) {
        const Place place = PlaceOf(places_, index_[rank], row);
        Cell& cell = cells_[place.cell];
        cell.value = bdn::ClampToFinite(cell.value - Signed(value[rank], place.sign));
        cell.ranks ^= rank;
        if (--cell.count == 1) queue_[end++] = static_cast<uint32_t>(place.cell);
      }
      ++found;
    }
    return found;
  }

  float value(size_t cell) const { return cells_[cell].value; }
  bool is_empty(size_t cell) const { return cells_[cell].count == 0; }

 private:
  struct Cell {
    float value;
    uint32_t count;  // elements not yet found
    uint32_t ranks;  // their ranks, joined by exclusive or: a single element's can be read
  };
  static_assert(sizeof(Cell) == kPeelCellBytes);

  const SketchPlaces places_;
  const uint32_t* const index_;
  Cell* const cells_;
  uint32_t* const queue_;
};

#if HWY_TARGET != HWY_SCALAR

// The same cells in eight bytes, where there are at most 2^20 elements and less than 64 in a cell.
// Singles are taken out of the queue in batches, whose places are found by vectors; then each
// element leaves its three cells at once. Owned by one call.
//
// A cell is a word of 64 bits. Its low half is the value; its high half has the sum of
// kOne + rank over the elements that were not found yet: their number in the upper six bits, and a
// single element's rank in the others.
class NarrowCells {
 public:
  static constexpr size_t kMostElements = size_t{1} << 20;

  NarrowCells(const SketchPlaces& places, const std::byte* from, const uint32_t* index, size_t n,
              const PeelScratch& scratch)
      : places_(places),
        width_(static_cast<uint32_t>(places.width)),
        index_(index),
        n_(n),
        cells_(reinterpret_cast<uint64_t*>(scratch.cells)),
        members_(reinterpret_cast<uint32_t*>(cells_ + kRows * places.width)),
        queue_(scratch.queue) {
    for (uint32_t row = 0; row < kRows; ++row) {
      CountMembers(row);
      FillRow(row, from + row * places.width * sizeof(float));
    }
  }

  // Returns whether no cell had 64 elements or more, which would have changed the sum of all
  // numbers.
  bool are_counted() const { return total_ == kRows * n_; }

  // Finds singles as WideCells does.
  size_t FindSingles(float* HWY_RESTRICT value) {
    // Local copies, so that the compiler knows that no store to a cell changes them.
    const SketchRow rows[kRows] = {Row(0), Row(1), Row(2)};
    uint64_t* const cells = cells_;
    uint32_t* const queue = queue_;
    uint32_t* end = queue + queued_;
    size_t found = 0;
    Batch batch;
    for (const uint32_t* head = queue; head < end;) {
      head = Select(cells, head, end, &batch);
      FindPlaces(rows, &batch);
      for (size_t k = 0; k < batch.size; ++k) {
        for (const auto& place : batch.place) hwy::Prefetch(cells + place[k]);
      }
      for (size_t k = 0; k < batch.size; ++k) {
        const uint32_t members = batch.members[k];
        // The batch may have the element from another cell, too.
        if (static_cast<uint32_t>(cells[batch.from[k]] >> 32) != members) continue;
        value[members - kOne] = batch.value[k];
        end = TakeOut(cells, batch, k, end);
        ++found;
      }
    }
    return found;
  }

  float value(size_t cell) const {
    return std::bit_cast<float>(static_cast<uint32_t>(cells_[cell]));
  }
  bool is_empty(size_t cell) const { return cells_[cell] >> 32 == 0; }

 private:
  static constexpr int kCountBit = 26;
  static constexpr uint32_t kOne = uint32_t{1} << kCountBit;
  static constexpr size_t kCounted = 128;
  static constexpr size_t kBatch = 32;
  // The cell of an entry is prefetched while the entry this far before it is selected, and those of
  // an element once the places of its batch are known: a cache of the second level does not hold
  // the cells of a million elements.
  static constexpr ptrdiff_t kAhead = 32;

  using D32 = hn::Full128<uint32_t>;
  using DFloat = hn::Full128<float>;
  using D64 = hn::Full128<uint64_t>;
  using DHalf = hn::Half<D64>;

  // Entries of the queue whose cells still had their single elements when they were selected.
  struct Batch {
    size_t size = 0;
    HWY_ALIGN uint32_t from[kBatch] = {};
    HWY_ALIGN uint64_t cell[kBatch] = {};
    HWY_ALIGN uint32_t index[kBatch] = {};
    HWY_ALIGN uint32_t members[kBatch];
    HWY_ALIGN float value[kBatch];
    HWY_ALIGN uint32_t place[kRows][kBatch];
    HWY_ALIGN uint32_t sign[kRows][kBatch];
    // The same by element; the fourth numbers are not used.
    HWY_ALIGN uint32_t places[kBatch][4];
    HWY_ALIGN uint32_t signs[kBatch][4];
  };

  HWY_INLINE SketchRow Row(uint32_t row) const { return SketchRow(places_, row, row * width_); }

  // Sums up the members of each cell of a row, in an array of their own: it is half as long as the
  // cells, and caches hold more of it.
  HWY_INLINE void CountMembers(uint32_t row) {
    HWY_ALIGN uint32_t cell[kCounted];
    HWY_ALIGN uint32_t sign[kCounted];
    uint32_t last[kCounted] = {};
    uint32_t* const HWY_RESTRICT members = members_;
    std::memset(members, 0, width_ * sizeof(uint32_t));
    const SketchRow places_in_row(places_, row, 0);
    for (size_t at = 0; at < n_; at += kCounted) {
      const size_t count = std::min(kCounted, n_ - at);
      const uint32_t* batch = index_ + at;
      // The places of a whole batch are found, and memory past the end must not be read.
      if (count < kCounted) {
        batch = static_cast<uint32_t*>(std::memcpy(last, batch, count * sizeof(uint32_t)));
      }
      places_in_row.Find(batch, kCounted, cell, sign);
      const uint32_t first = kOne + static_cast<uint32_t>(at);
      for (uint32_t k = 0; k < count; ++k) members[cell[k]] += first + k;
    }
  }

  // Writes the cells of a row, and appends those of a single element to the queue.
  HWY_INLINE void FillRow(uint32_t row, const std::byte* from) {
    const hn::RebindToUnsigned<Tag> d;
    const hn::Repartition<uint8_t, Tag> d8;
    uint64_t* const to = cells_ + row * places_.width;
    const uint32_t before = row * width_;
    const uint32_t* const members = members_;
    uint32_t* end = queue_ + queued_;
    auto numbers = hn::Zero(d);
    size_t c = 0;
    for (; c + kWord <= width_; c += kWord) {
      Mask single[kWordVectors];
      for (size_t v = 0; v < kWordVectors; ++v) {
        const size_t at = c + v * kVectorLanes;
        const auto of_cells = hn::LoadU(d, members + at);
        // Cells lie in the payload, which need not be aligned.
        const auto values = hn::BitCast(
            d, hn::LoadU(d8, reinterpret_cast<const uint8_t*>(from) + at * sizeof(float)));
        hn::StoreInterleaved2(values, of_cells, d, reinterpret_cast<uint32_t*>(to + at));
        const auto number = hn::ShiftRight<kCountBit>(of_cells);
        numbers = hn::Add(numbers, number);
        single[v] = hn::RebindMask(Tag(), hn::Eq(number, hn::Set(d, 1)));
      }
      end += AppendOnes(WordOf(single), before + static_cast<uint32_t>(c), end);
    }
    HWY_ALIGN uint32_t lanes[kVectorLanes];
    hn::Store(numbers, d, lanes);
    for (const uint32_t number : lanes) total_ += number;
    for (; c < width_; ++c) {
      const uint32_t number = members[c] >> kCountBit;
      total_ += number;
      to[c] = uint64_t{members[c]} << 32 | std::bit_cast<uint32_t>(LoadCell(from, c));
      *end = before + static_cast<uint32_t>(c);
      end += number == 1;
    }
    queued_ = static_cast<size_t>(end - queue_);
  }

  // Takes entries out of the queue until the batch is full, and returns where the next one is.
  HWY_INLINE const uint32_t* Select(const uint64_t* cells, const uint32_t* head,
                                    const uint32_t* end, Batch* batch) const {
    size_t size = 0;
    for (; size < kBatch && head < end; ++head) {
      const uint64_t cell = cells[*head];
      hwy::Prefetch(cells + head[std::min<ptrdiff_t>(kAhead, end - 1 - head)]);
      batch->from[size] = *head;
      batch->cell[size] = cell;
      // The element may have been found from another cell since this one was queued.
      size += cell >> (32 + kCountBit) == 1;
    }
    const uint32_t* const index = index_;
    for (size_t k = 0; k < size; ++k) batch->index[k] = index[(batch->cell[k] >> 32) - kOne];
    batch->size = size;
    return head;
  }

  // Finds the values of a batch, and its elements' places in all rows.
  HWY_INLINE void FindPlaces(const SketchRow* rows, Batch* batch) const {
    const D32 d;
    const DFloat df;
    const D64 d64;
    const hn::RebindToSigned<D32> di;
    for (size_t row = 0; row < kRows; ++row) {
      rows[row].Find(batch->index, kBatch, batch->place[row], batch->sign[row]);
    }
    const auto first_row = hn::Set(di, static_cast<int32_t>(width_) - 1);
    const auto second_row = hn::Set(di, static_cast<int32_t>(2 * width_) - 1);
    for (size_t k = 0; k < kBatch; k += hn::Lanes(d)) {
      const auto sign0 = hn::Load(d, batch->sign[0] + k);
      const auto sign1 = hn::Load(d, batch->sign[1] + k);
      const auto sign2 = hn::Load(d, batch->sign[2] + k);
      const auto from = hn::BitCast(di, hn::Load(d, batch->from + k));
      auto sign = hn::IfThenElse(hn::RebindMask(d, hn::Gt(from, first_row)), sign1, sign0);
      sign = hn::IfThenElse(hn::RebindMask(d, hn::Gt(from, second_row)), sign2, sign);
      const auto low = hn::BitCast(d, hn::Load(d64, batch->cell + k));
      const auto high = hn::BitCast(d, hn::Load(d64, batch->cell + k + 2));
      const auto value = hn::BitCast(df, hn::Xor(hn::ConcatEven(d, high, low), sign));
      hn::Store(hn::Add(hn::Zero(df), value), df, batch->value + k);
      hn::Store(hn::ConcatOdd(d, high, low), d, batch->members + k);
      hn::StoreInterleaved4(hn::Load(d, batch->place[0] + k), hn::Load(d, batch->place[1] + k),
                            hn::Load(d, batch->place[2] + k), hn::Zero(d), d, batch->places[k]);
      hn::StoreInterleaved4(sign0, sign1, sign2, hn::Zero(d), d, batch->signs[k]);
    }
  }

  // Takes element k of the batch out of its cells, appends those that have a single element left to
  // the queue, and returns its end.
  static HWY_INLINE uint32_t* TakeOut(uint64_t* cells, const Batch& batch, size_t k,
                                      uint32_t* end) {
    const D32 d;
    const DFloat df;
    const D64 d64;
    const DHalf half;
    uint64_t* const cell0 = cells + batch.places[k][0];
    uint64_t* const cell1 = cells + batch.places[k][1];
    uint64_t* const cell2 = cells + batch.places[k][2];
    const auto low = hn::BitCast(d, hn::Combine(d64, hn::Load(half, cell1), hn::Load(half, cell0)));
    const auto high = hn::BitCast(d, hn::ZeroExtendVector(d64, hn::Load(half, cell2)));
    const auto places = hn::Load(d, batch.places[k]);
    const auto signs = hn::Load(d, batch.signs[k]);
    const auto share = hn::BitCast(df, hn::Xor(hn::BitCast(d, hn::Set(df, batch.value[k])), signs));
    const auto values =
        ClampToFinite(df, hn::Sub(hn::BitCast(df, hn::ConcatEven(d, high, low)), share));
    const auto members = hn::Sub(hn::ConcatOdd(d, high, low), hn::Set(d, batch.members[k]));
    const auto new_low = hn::BitCast(d64, hn::InterleaveLower(d, hn::BitCast(d, values), members));
    const auto new_high = hn::BitCast(d64, hn::InterleaveUpper(d, hn::BitCast(d, values), members));
    hn::Store(hn::LowerHalf(half, new_low), half, cell0);
    hn::Store(hn::UpperHalf(half, new_low), half, cell1);
    hn::Store(hn::LowerHalf(half, new_high), half, cell2);
    return Append(places, hn::Eq(hn::ShiftRight<kCountBit>(members), hn::Set(d, 1)), end);
  }

  // Appends the cells of the lanes that are set, in order. The fourth lane is not.
  static HWY_INLINE uint32_t* Append(hn::Vec<D32> cells, hn::Mask<D32> singles, uint32_t* end) {
    const D32 d;
    const hn::Repartition<uint8_t, D32> d8;
    // The bytes of the lanes of each mask, moved to the front.
    HWY_ALIGN static constexpr uint8_t kToFront[8][16] = {
        {},
        {0, 1, 2, 3},
        {4, 5, 6, 7},
        {0, 1, 2, 3, 4, 5, 6, 7},
        {8, 9, 10, 11},
        {0, 1, 2, 3, 8, 9, 10, 11},
        {4, 5, 6, 7, 8, 9, 10, 11},
        {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11},
    };
    uint8_t bits[8];
    hn::StoreMaskBits(d, singles, bits);
    const auto to_front = hn::Load(d8, kToFront[bits[0]]);
    hn::StoreU(hn::BitCast(d, hn::TableLookupBytes(hn::BitCast(d8, cells), to_front)), d, end);
    return end + std::popcount(bits[0]);
  }

  const SketchPlaces places_;
  const uint32_t width_;
  const uint32_t* const index_;
  const size_t n_;
  uint64_t* const cells_;
  uint32_t* const members_;
  // A cell's number only falls, so it comes to 1 once at most, and the queue needs no more than one
  // entry for each cell, and room for a vector past the last.
  uint32_t* const queue_;
  size_t queued_ = 0;  // cells of a single element at the beginning
  size_t total_ = 0;   // the numbers of elements in all cells
};

#endif

// Returns the median of three values.
HWY_INLINE float MedianOfThree(float a, float b, float c) {
  const float low = std::min(a, b);
  const float high = std::max(a, b);
  return std::max(low, std::min(high, c));
}

// Finds the singles, gives each element that was not found the median of its cells, and returns the
// number of these.
template <class Cells>
size_t PeelWith(Cells& cells, const SketchPlaces& places, const uint32_t* index, size_t n,
                float* value) {
  const size_t unfound = n - cells.FindSingles(value);
  for (size_t rank = 0; rank < n && unfound > 0; ++rank) {
    const Place a = PlaceOf(places, index[rank], 0);
    const Place b = PlaceOf(places, index[rank], 1);
    const Place c = PlaceOf(places, index[rank], 2);
    // A found element has left the cell that it was read from empty. An element that was not found
    // is still counted in all three of its cells.
    if (cells.is_empty(a.cell) || cells.is_empty(b.cell) || cells.is_empty(c.cell)) continue;
    value[rank] = MedianOfThree(0.0f + Signed(cells.value(a.cell), a.sign),
                                0.0f + Signed(cells.value(b.cell), b.sign),
                                0.0f + Signed(cells.value(c.cell), c.sign));
  }
  return unfound;
}

size_t PeelCellsKernel(const SketchPlaces& places, const std::byte* from, const uint32_t* index,
                       size_t n, const PeelScratch& scratch, float* value) {
#if HWY_TARGET != HWY_SCALAR
  if (n <= NarrowCells::kMostElements && kRows * places.width < size_t{1} << 31) {
    NarrowCells cells(places, from, index, n, scratch);
    if (cells.are_counted()) return PeelWith(cells, places, index, n, value);
  }
#endif
  WideCells cells(places, from, index, n, scratch);
  return PeelWith(cells, places, index, n, value);
}

}  // namespace HWY_NAMESPACE
}  // namespace bdn
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace bdn {

HWY_EXPORT(PeelCellsKernel);

size_t PeelCells(const SketchPlaces& places, const std::byte* cells, const uint32_t* index,
                 size_t n, const PeelScratch& scratch, float* value) {
  return HWY_DYNAMIC_DISPATCH(PeelCellsKernel)(places, cells, index, n, scratch, value);
}

}  // namespace bdn
#endif  // HWY_ONCE
