#include <algorithm>
#include <array>
#include <cmath>
#include <deque>
#include <limits>

#include "tests/reference/codec_reference.h"

namespace bdn::reference {
namespace {

size_t WidthOf(const Spec& spec, size_t n) {
  if (n == 0) return 0;
  const auto cells =
      static_cast<size_t>(std::ceil(spec.Number("cells", 0) * static_cast<double>(n)));
  return std::max<size_t>(2, (cells + 2) / 3);
}

float Clamp(float value) {
  if (std::isfinite(value)) return value;
  return value > 0 ? std::numeric_limits<float>::max() : -std::numeric_limits<float>::max();
}

struct Element {
  size_t index;
  std::array<size_t, 3> cell;
  std::array<float, 3> sign;
  bool found = false;
};

Element ElementAt(size_t i, size_t width, Keys keys) {
  Element element{.index = i, .cell = {}, .sign = {}};
  for (size_t row = 0; row < 3; ++row) {
    const uint32_t word = DrawWord(keys, static_cast<uint32_t>(3 * i + row));
    element.cell[row] =
        row * width + static_cast<size_t>(static_cast<uint64_t>(word) * width / 4294967296u);
    element.sign[row] = word % 2 == 1 ? -1.0f : 1.0f;
  }
  return element;
}

}  // namespace

Bytes EncodeExactSketch(const Spec& spec, const std::vector<float>& p, Keys keys) {
  const size_t width = WidthOf(spec, p.size());
  Bytes out;
  PutU32(&out, keys.k0);
  PutU32(&out, keys.k1);
  std::vector<uint32_t> words((p.size() + 31) / 32);
  std::vector<float> cells(3 * width, 0.0f);
  for (size_t i = 0; i < p.size(); ++i) {
    if (p[i] == 0) continue;
    words[i / 32] += 1u << (i % 32);
    const Element element = ElementAt(i, width, keys);
    for (size_t row = 0; row < 3; ++row) {
      float& cell = cells.at(element.cell[row]);
      cell = Clamp(cell + element.sign[row] * p[i]);
    }
  }
  for (const uint32_t word : words) PutU32(&out, word);
  for (const float cell : cells) PutF32(&out, cell);
  return out;
}

std::vector<float> DecodeExactSketch(const Spec& spec, const Bytes& in, size_t n) {
  const size_t width = WidthOf(spec, n);
  const Keys keys{GetU32(in, 0), GetU32(in, 4)};
  std::vector<Element> elements;
  for (size_t i = 0; i < n; ++i) {
    if ((GetU32(in, 8 + i / 32 * 4) >> (i % 32) & 1) == 1) {
      elements.push_back(ElementAt(i, width, keys));
    }
  }
  std::vector<float> cells(3 * width);
  std::vector<std::vector<Element*>> members(3 * width);
  for (size_t c = 0; c < cells.size(); ++c) cells[c] = GetF32(in, 8 + (n + 31) / 32 * 4 + 4 * c);
  for (Element& element : elements) {
    for (const size_t c : element.cell) members.at(c).push_back(&element);
  }
  std::vector<float> decoded(n, 0.0f);
  std::deque<size_t> queue;
  for (size_t c = 0; c < cells.size(); ++c) {
    if (members[c].size() == 1) queue.push_back(c);
  }
  for (; !queue.empty(); queue.pop_front()) {
    const size_t from = queue.front();
    if (members[from].size() != 1) continue;
    Element& element = *members[from][0];
    element.found = true;
    const float value = 0.0f + element.sign[from / width] * cells[from];
    decoded[element.index] = value;
    for (size_t row = 0; row < 3; ++row) {
      const size_t c = element.cell[row];
      cells[c] = Clamp(cells[c] - element.sign[row] * value);
      members[c].erase(std::find(members[c].begin(), members[c].end(), &element));
      if (members[c].size() == 1) queue.push_back(c);
    }
  }
  for (const Element& element : elements) {
    if (element.found) continue;
    std::array<float, 3> estimates;
    for (size_t row = 0; row < 3; ++row) {
      estimates[row] = 0.0f + element.sign[row] * cells[element.cell[row]];
    }
    std::sort(estimates.begin(), estimates.end());
    decoded[element.index] = estimates[1];
  }
  return decoded;
}

}  // namespace bdn::reference
