// The places of elements in the cells of a count sketch. Included once for each target.

#if defined(BANDONEON_KERNELS_SKETCH_PLACES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef BANDONEON_KERNELS_SKETCH_PLACES_INL_H_
#undef BANDONEON_KERNELS_SKETCH_PLACES_INL_H_
#else
#define BANDONEON_KERNELS_SKETCH_PLACES_INL_H_
#endif

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "hwy/highway.h"
#include "kernels/sketch_kernels.h"

HWY_BEFORE_NAMESPACE();
namespace bdn {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using PlaceTag = hn::CappedTag<uint32_t, 16>;
using PlaceVector = hn::Vec<PlaceTag>;

// A row of a sketch, which finds the places of elements in it.
class SketchRow {
 public:
  // `before` is the number of cells before those of the row, which is added to each of its own.
  HWY_INLINE SketchRow(const SketchPlaces& places, uint32_t row, uint32_t before)
      : rows_(static_cast<uint32_t>(places.rows)),
        row_(row),
        k0_(places.draw.k0()),
        k1_(places.draw.k1()),
        width_(static_cast<uint32_t>(places.width)),
        whole_(width_ == places.width ? 0 : ~uint32_t{0}),
        before_(before) {}

  // Finds the cells of n elements, and their signs as a float's top bit. REQUIRES: n is a multiple
  // of 16; the arrays are aligned.
  HWY_INLINE void Find(const uint32_t* HWY_RESTRICT index, size_t n, uint32_t* HWY_RESTRICT cell,
                       uint32_t* HWY_RESTRICT sign) const {
    const PlaceTag d;
    for (size_t k = 0; k < n; k += hn::Lanes(d)) {
      const auto first = hn::Mul(hn::LoadU(d, index + k), hn::Set(d, rows_));
      const auto word = Word(hn::Add(first, hn::Set(d, row_)));
      // A width of 2^32 is one bit too long for the product.
      const auto whole = hn::And(word, hn::Set(d, whole_));
      const auto place = hn::Add(UpperHalf(word), whole);
      hn::Store(hn::Add(place, hn::Set(d, before_)), d, cell + k);
      hn::Store(hn::ShiftLeft<31>(word), d, sign + k);
    }
  }

 private:
  // Returns Draw::Word of each lane.
  HWY_INLINE PlaceVector Word(PlaceVector j) const {
    const PlaceTag d;
    auto x = hn::Add(hn::Mul(j, hn::Set(d, 0x9E3779B9u)), hn::Set(d, k0_));
    x = hn::Xor(x, hn::ShiftRight<16>(x));
    x = hn::Mul(x, hn::Set(d, 0x21F0AAADu));
    x = hn::Add(hn::Xor(x, hn::ShiftRight<15>(x)), hn::Set(d, k1_));
    x = hn::Mul(x, hn::Set(d, 0x735A2D97u));
    return hn::Xor(x, hn::ShiftRight<15>(x));
  }
  // Returns word * width_ >> 32.
  HWY_INLINE PlaceVector UpperHalf(PlaceVector word) const {
    const PlaceTag d;
#if HWY_TARGET == HWY_SCALAR
    return hn::Set(d, static_cast<uint32_t>(uint64_t{hn::GetLane(word)} * width_ >> 32));
#else
    const hn::RepartitionToWide<PlaceTag> d64;
    const auto width = hn::Set(d, width_);
    const auto even = hn::MulEven(word, width);
    const auto odd = hn::MulEven(hn::BitCast(d, hn::ShiftRight<32>(hn::BitCast(d64, word))), width);
    return hn::OddEven(hn::BitCast(d, odd), hn::BitCast(d, hn::ShiftRight<32>(even)));
#endif
  }

  const uint32_t rows_;
  const uint32_t row_;
  const uint32_t k0_;
  const uint32_t k1_;
  const uint32_t width_;
  const uint32_t whole_;
  const uint32_t before_;
};

// Returns the value with the sign that was found for it.
HWY_INLINE float Signed(float value, uint32_t sign) {
  return std::bit_cast<float>(std::bit_cast<uint32_t>(value) ^ sign);
}

// Appends at + i for each bit i of a word. Four at a time go without a branch: one for each bit
// would be mispredicted at the end of every word.
HWY_INLINE size_t AppendOnes(uint64_t word, uint32_t at, uint32_t* HWY_RESTRICT to) {
  static_assert(kOnesSlack >= 4);
  const auto count = static_cast<size_t>(std::popcount(word));
  for (size_t k = 0; k < count; k += 4) {
    for (size_t j = 0; j < 4; ++j) {
      to[k + j] = at + static_cast<uint32_t>(std::countr_zero(word));
      word &= word - 1;
    }
  }
  return count;
}

// LoadCell and StoreCell access cell c, which need not be aligned.
HWY_INLINE float LoadCell(const std::byte* cells, size_t c) {
  float cell;
  std::memcpy(&cell, cells + c * sizeof(cell), sizeof(cell));
  return cell;
}
HWY_INLINE void StoreCell(std::byte* cells, size_t c, float cell) {
  std::memcpy(cells + c * sizeof(cell), &cell, sizeof(cell));
}

}  // namespace HWY_NAMESPACE
}  // namespace bdn
HWY_AFTER_NAMESPACE();

#endif
