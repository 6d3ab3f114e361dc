#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "tests/reference/codec_reference.h"

namespace bdn::reference {
namespace {

size_t BlockSize(const Spec& spec) {
  return spec.name == "randomk" ? 1 : static_cast<size_t>(spec.Number("size", 1024));
}

std::set<size_t> DrawnBlocks(const Spec& spec, size_t n, Keys keys) {
  std::set<size_t> drawn;
  const size_t num_blocks = (n + BlockSize(spec) - 1) / BlockSize(spec);
  const double u = std::ldexp(DrawWord(keys, 0), -32);
  const double wanted = spec.Number("ratio", 0) * static_cast<double>(num_blocks) + u;
  const size_t count = std::min(num_blocks, static_cast<size_t>(std::floor(wanted)));
  const size_t phase = static_cast<size_t>(DrawWord(keys, 1)) * num_blocks >> 32;
  for (size_t j = 0; j < count; ++j) {
    const size_t first = j * num_blocks / count;
    const size_t next = (j + 1) * num_blocks / count;
    const size_t word = DrawWord(keys, static_cast<uint32_t>(j + 2));
    drawn.insert((first + (word * (next - first) >> 32) + phase) % num_blocks);
  }
  return drawn;
}

float Clamp(float value) {
  const float largest = std::numeric_limits<float>::max();
  if (value > largest) return largest;
  return value < -largest ? -largest : value;
}

}  // namespace

Bytes EncodeDrawn(const Spec& spec, const std::vector<float>& p, Keys keys) {
  Bytes out;
  if (p.empty()) return out;
  PutU32(&out, keys.k0);
  PutU32(&out, keys.k1);
  float factor = 1;
  if (spec.Word("unbiased", "false") == "true") {
    factor = Clamp(static_cast<float>(1 / spec.Number("ratio", 0)));
  }
  const std::set<size_t> drawn = DrawnBlocks(spec, p.size(), keys);
  for (size_t i = 0; i < p.size(); ++i) {
    if (drawn.count(i / BlockSize(spec)) == 1) PutF32(&out, Clamp(p[i] * factor) + 0.0f);
  }
  return out;
}

std::vector<float> DecodeDrawn(const Spec& spec, const Bytes& in, size_t n) {
  std::vector<float> decoded(n, 0.0f);
  if (n == 0) return decoded;
  const std::set<size_t> drawn = DrawnBlocks(spec, n, {GetU32(in, 0), GetU32(in, 4)});
  size_t at = 8;
  for (size_t i = 0; i < n; ++i) {
    if (drawn.count(i / BlockSize(spec)) == 0) continue;
    decoded[i] = GetF32(in, at);
    at += 4;
  }
  return decoded;
}

}  // namespace bdn::reference
