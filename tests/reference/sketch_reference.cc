#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/reference/codec_reference.h"

namespace bdn::reference {
namespace {

struct Shape {
  size_t rows;
  size_t width;
};

Shape ShapeOf(const Spec& spec, size_t n) {
  const auto rows = static_cast<size_t>(spec.Number("rows", 3));
  const double columns = spec.Number("columns", 0);
  if (n == 0) return {rows, 0};
  if (columns > 1) return {rows, std::min(n, static_cast<size_t>(columns))};
  const double share = std::ceil(columns * static_cast<double>(n));
  return {rows, std::max<size_t>(1, static_cast<size_t>(share))};
}

float Clamp(float value) {
  if (std::isfinite(value)) return value;
  return value > 0 ? std::numeric_limits<float>::max() : -std::numeric_limits<float>::max();
}

}  // namespace

Bytes EncodeSketch(const Spec& spec, const std::vector<float>& p, Keys keys) {
  const Shape shape = ShapeOf(spec, p.size());
  Bytes out;
  PutU32(&out, keys.k0);
  PutU32(&out, keys.k1);
  for (size_t begin = 0; begin < p.size(); begin += 32) {
    uint32_t word = 0;
    for (size_t j = 0; j < 32 && begin + j < p.size(); ++j) {
      if (p[begin + j] != 0) word += 1u << j;
    }
    PutU32(&out, word);
  }
  for (size_t row = 0; row < shape.rows; ++row) {
    std::vector<float> cells(shape.width, 0.0f);
    for (size_t i = 0; i < p.size(); ++i) {
      if (p[i] == 0) continue;
      const uint32_t word = DrawWord(keys, static_cast<uint32_t>(shape.rows * i + row));
      float& cell = cells.at(static_cast<size_t>(static_cast<uint64_t>(word) * shape.width >> 32));
      cell = Clamp(word % 2 == 1 ? cell - p[i] : cell + p[i]);
    }
    for (const float cell : cells) PutF32(&out, cell);
  }
  return out;
}

std::vector<float> DecodeSketch(const Spec& spec, const Bytes& in, size_t n) {
  const Shape shape = ShapeOf(spec, n);
  const Keys keys{GetU32(in, 0), GetU32(in, 4)};
  const size_t cells = 8 + (n + 31) / 32 * 4;
  std::vector<float> decoded(n, 0.0f);
  for (size_t i = 0; i < n; ++i) {
    if ((GetU32(in, 8 + i / 32 * 4) >> (i % 32) & 1) == 0) continue;
    std::vector<float> estimates;
    for (size_t row = 0; row < shape.rows; ++row) {
      const uint32_t word = DrawWord(keys, static_cast<uint32_t>(shape.rows * i + row));
      const auto column = static_cast<size_t>(static_cast<uint64_t>(word) * shape.width >> 32);
      const float cell = GetF32(in, cells + 4 * (row * shape.width + column));
      estimates.push_back(0.0f + (word % 2 == 1 ? -cell : cell));
    }
    std::sort(estimates.begin(), estimates.end());
    decoded[i] = estimates[shape.rows / 2];
  }
  return decoded;
}

}  // namespace bdn::reference
