#include "common/base/draw.h"

namespace bdn {
namespace {

// The finalizer of SplitMix64: a bijection in which every input bit reaches every output bit.
uint64_t Mix(uint64_t x) {
  x ^= x >> 30;
  x *= 0xBF58476D1CE4E5B9u;
  x ^= x >> 27;
  x *= 0x94D049BB133111EBu;
  x ^= x >> 31;
  return x;
}

// Continues a chain of hashes. Each value is mixed before it is added, so that small values differ
// in all bits.
uint64_t Chain(uint64_t hash, uint64_t value) {
  return Mix(hash + 0x9E3779B97F4A7C15u + Mix(value + 0xD1B54A32D192ED03u));
}

}  // namespace

Draw::Draw(const Identity& identity) {
  uint64_t hash = 0x42616E646F6E656Fu;  // "Bandoneo"
  hash = Chain(hash, identity.run_seed);
  hash = Chain(hash, identity.tensor_name_hash);
  hash = Chain(hash, identity.partition);
  hash = Chain(hash, identity.step);
  hash = Chain(hash, static_cast<uint64_t>(identity.purpose));
  hash = Chain(hash, static_cast<uint64_t>(static_cast<int64_t>(identity.rank)));
  k0_ = static_cast<uint32_t>(hash);
  k1_ = static_cast<uint32_t>(hash >> 32);
}

Draw Draw::FromKeys(uint32_t k0, uint32_t k1) {
  Draw draw;
  draw.k0_ = k0;
  draw.k1_ = k1;
  return draw;
}

Draw Draw::Part(uint32_t i) const {
  if (i == 0) return *this;
  const uint64_t hash = Chain(uint64_t{k1_} << 32 | k0_, i);
  Draw part = *this;
  part.k0_ = static_cast<uint32_t>(hash);
  part.k1_ = static_cast<uint32_t>(hash >> 32);
  return part;
}

uint64_t Draw::HashName(std::string_view name) {
  uint64_t hash = 0xCBF29CE484222325u;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3u;
  return Mix(hash);
}

}  // namespace bdn
