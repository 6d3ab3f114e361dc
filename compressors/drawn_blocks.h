#ifndef BANDONEON_COMPRESSORS_DRAWN_BLOCKS_H_
#define BANDONEON_COMPRESSORS_DRAWN_BLOCKS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "common/base/draw.h"
#include "compressors/scratch.h"

// The draw of the blocks that the codecs of compressors/drawn.h send. Internal to compressors/.

namespace bdn {

// The choice of one draw among n elements in blocks of `size`, by the arithmetic of drawn.h.
// Immutable.
class DrawnBlocks {
 public:
  DrawnBlocks(const Draw& draw, double ratio, size_t size, size_t n);
  // Returns K of drawn.h for the given B and u.
  static size_t Count(double ratio, size_t num_blocks, double u);

  size_t count() const { return count_; }
  // Returns the number of elements in all drawn blocks.
  size_t num_values() const;
  // Writes the count() drawn blocks, rising. `first` is working memory for count() + 1 numbers.
  void Write(uint32_t* first, uint32_t* block) const;

 private:
  // Returns x[j] of drawn.h.
  size_t Drawn(size_t j) const;
  // Returns the j with first[j] <= x < first[j + 1].
  size_t StratumOf(size_t x) const { return ((x + 1) * count_ - 1) / num_blocks_; }
  bool Has(size_t block) const;
  void Turn();
  void WriteStrata(uint32_t* first) const;

  const Draw draw_;
  const size_t size_;
  const size_t n_;
  const size_t num_blocks_;
  const size_t count_;
  uint32_t phase_ = 0;
  size_t from_ = 0;  // blocks of the strata from here on wrap round
};

// The elements of the drawn blocks, a stretch for each block, rising. Owned by one call.
class DrawnStretches {
 public:
  DrawnStretches(const DrawnBlocks& drawn, size_t size, size_t n)
      : blocks_(drawn.count()), size_(size), n_(n) {
    const ScratchArray<uint32_t> first(drawn.count() + 1);
    drawn.Write(first.data(), blocks_.data());
  }

  size_t count() const { return blocks_.size(); }
  std::span<const uint32_t> blocks() const { return blocks_.span(); }
  size_t begin(size_t i) const { return blocks_[i] * size_; }
  size_t length(size_t i) const { return std::min(size_, n_ - begin(i)); }
  // Returns the index of stretch i's first element among the values. Only the last stretch can be
  // short.
  size_t value(size_t i) const { return i * size_; }

 private:
  const ScratchArray<uint32_t> blocks_;
  const size_t size_;
  const size_t n_;
};

}  // namespace bdn

#endif  // BANDONEON_COMPRESSORS_DRAWN_BLOCKS_H_
