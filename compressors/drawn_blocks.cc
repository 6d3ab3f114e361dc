#include "compressors/drawn_blocks.h"

#include "compressors/payload.h"
#include "kernels/drawn_kernels.h"

namespace bdn {
namespace {

uint32_t ScaledWord(const Draw& draw, uint32_t j, size_t n) {
  return static_cast<uint32_t>(uint64_t{draw.Word(j)} * n >> 32);
}

}  // namespace

DrawnBlocks::DrawnBlocks(const Draw& draw, double ratio, size_t size, size_t n)
    : draw_(draw),
      size_(size),
      n_(n),
      num_blocks_(DivideUp(n, size)),
      count_(Count(ratio, num_blocks_, draw.Word(0) * 0x1p-32)) {
  if (count_ > 0) Turn();
}

size_t DrawnBlocks::Count(double ratio, size_t num_blocks, double u) {
  const double wanted = ratio * static_cast<double>(num_blocks) + u;
  return std::min(num_blocks, static_cast<size_t>(wanted));
}

size_t DrawnBlocks::num_values() const {
  // Only the last block of the array can be short.
  const bool short_last = n_ % size_ != 0 && Has(num_blocks_ - 1);
  return count_ * size_ - (short_last ? num_blocks_ * size_ - n_ : 0);
}

void DrawnBlocks::Write(uint32_t* first, uint32_t* block) const {
  if (count_ == 0) return;
  WriteStrata(first);
  // The strata that wrap round to the front are written first, so that block numbers rise. Their
  // turn, phase_ - num_blocks_, is negative: it is taken modulo 2^32, as DrawInStrata adds.
  const size_t wrapped = count_ - from_;
  DrawInStrata(draw_, static_cast<uint32_t>(2 + from_), first + from_, wrapped,
               phase_ - static_cast<uint32_t>(num_blocks_), block);
  DrawInStrata(draw_, 2, first, from_, phase_, block + wrapped);
}

size_t DrawnBlocks::Drawn(size_t j) const {
  const size_t first = j * num_blocks_ / count_;
  const size_t next = (j + 1) * num_blocks_ / count_;
  return first + ScaledWord(draw_, static_cast<uint32_t>(2 + j), next - first);
}

bool DrawnBlocks::Has(size_t block) const {
  if (count_ == 0) return false;
  const size_t x = (block + num_blocks_ - phase_) % num_blocks_;
  return Drawn(StratumOf(x)) == x;
}

void DrawnBlocks::Turn() {
  phase_ = ScaledWord(draw_, 1, num_blocks_);
  // The phase turns block x into (x + phase_) mod num_blocks_, so blocks from `least` on wrap
  // round. from_ becomes the first stratum whose drawn block does.
  const size_t least = num_blocks_ - phase_;
  from_ = count_;
  if (phase_ == 0) return;
  from_ = StratumOf(least);
  if (Drawn(from_) < least) ++from_;
}

// Computes first[j] = floor(j * num_blocks / count) without a division for each j: each j goes on
// from the one before it. Four runs of j advance side by side, so that they do not wait for each
// other.
void DrawnBlocks::WriteStrata(uint32_t* first) const {
  const size_t whole = num_blocks_ / count_;
  const size_t rest = num_blocks_ % count_;
  constexpr size_t kRuns = 4;
  const size_t length = (count_ + 1) / kRuns;
  size_t at[kRuns];
  size_t remainder[kRuns];
  for (size_t r = 0; r < kRuns; ++r) {
    at[r] = r * length * num_blocks_ / count_;
    remainder[r] = r * length * num_blocks_ % count_;
  }
  const auto step = [&](size_t r, size_t j) {
    first[j] = static_cast<uint32_t>(at[r]);
    const size_t sum = remainder[r] + rest;
    const bool carry = sum >= count_;
    at[r] += whole + (carry ? 1 : 0);
    remainder[r] = carry ? sum - count_ : sum;
  };
  for (size_t j = 0; j < length; ++j) {
    for (size_t r = 0; r < kRuns; ++r) step(r, r * length + j);
  }
  for (size_t j = kRuns * length; j <= count_; ++j) step(kRuns - 1, j);
}

}  // namespace bdn
