#ifndef BANDONEON_COMMON_BASE_DRAW_H_
#define BANDONEON_COMMON_BASE_DRAW_H_

#include <cstdint>
#include <string_view>

#include "common/base/ids.h"

namespace bdn {

// The kinds of draws. Links of one partition must not share numbers, so each end and purpose has
// its own.
enum class DrawPurpose : uint32_t {
  kWorkerEncode = 1,
  kServerEncode = 2,
  kHostEncode = 3,
  kShared = 4,
  kInitialRow = 5
};

// A counter-based generator, from which codecs draw all their random numbers. The same identity
// draws the same numbers on every machine, so a retry or a restart repeats itself, and codecs that
// share a choice between nodes need not send it. Not for secrets, which the kernel's generator
// makes (secret.h). A value type; thread-safe.
//
// Pinned algorithm: a 64-bit chain hash of the identity gives two 32-bit keys; word j is
//   x = j * 0x9E3779B9 + k0;  x ^= x >> 16;  x *= 0x21F0AAAD;  x ^= x >> 15;  x += k1;
//   x *= 0x735A2D97;  x ^= x >> 15
// and element i owns the low (i even) or high (i odd) 16 bits of word i / 2.
class Draw {
 public:
  // Everything that numbers are drawn for. `rank` is the sender's, or kSharedRank where all nodes
  // must draw alike.
  static constexpr Rank kSharedRank = -1;
  struct Identity {
    uint64_t run_seed = 0;
    uint64_t tensor_name_hash = 0;  // HashName of the declared name
    uint32_t partition = 0;
    Step step = 0;
    DrawPurpose purpose = DrawPurpose::kWorkerEncode;
    Rank rank = kSharedRank;
  };

  Draw() : Draw(Identity{}) {}
  explicit Draw(const Identity& identity);
  // Returns the draw whose keys are these, for receivers to which they were sent.
  static Draw FromKeys(uint32_t k0, uint32_t k1);

  // Returns another draw, for the i-th part of what this one draws for; part 0 is this draw.
  Draw Part(uint32_t i) const;

  uint32_t Word(uint32_t j) const {
    uint32_t x = j * 0x9E3779B9u + k0_;
    x ^= x >> 16;
    x *= 0x21F0AAADu;
    x ^= x >> 15;
    x += k1_;
    x *= 0x735A2D97u;
    x ^= x >> 15;
    return x;
  }
  uint32_t Bits16(uint32_t i) const { return (Word(i / 2) >> (16 * (i & 1))) & 0xffffu; }

  uint32_t k0() const { return k0_; }
  uint32_t k1() const { return k1_; }

  // Returns FNV-1a over the bytes, followed by a finalizer. Stable for ever.
  static uint64_t HashName(std::string_view name);

 private:
  uint32_t k0_;
  uint32_t k1_;
};

}  // namespace bdn

#endif  // BANDONEON_COMMON_BASE_DRAW_H_
