#include <algorithm>
#include <cmath>
#include <cstring>

#include "tests/reference/codec_reference.h"

namespace bdn::reference {
namespace {

constexpr size_t kGroup = 512;

struct Grid {
  uint32_t s;
  uint32_t b = 1;
  bool natural;
  bool l2;

  explicit Grid(const Spec& spec)
      : s(static_cast<uint32_t>(spec.Number("levels", 7))),
        natural(spec.Word("kind", "linear") == "natural"),
        l2(spec.Word("norm", "max") == "l2") {
    while ((1u << (b - 1)) <= s) ++b;
  }
};

double SumOfSquares(const std::vector<float>& p, float scale) {
  double total = 0;
  for (size_t run = 0; run < p.size(); run += 1024) {
    float lanes[16] = {};
    for (size_t i = run; i < std::min(p.size(), run + 1024); ++i) {
      const float value = p[i] * scale;
      const float square = value * value;
      lanes[(i - run) % 16] += square;
    }
    double joined[16];
    for (size_t l = 0; l < 16; ++l) joined[l] = lanes[l];
    for (size_t l = 0; l < 8; ++l) joined[l] += joined[l + 8];
    for (size_t l = 0; l < 4; ++l) joined[l] += joined[l + 4];
    joined[0] += joined[2];
    joined[1] += joined[3];
    total += joined[0] + joined[1];
  }
  return total;
}

float NormOf(const std::vector<float>& p, bool l2) {
  double norm = 0;
  if (l2) {
    const double sum = SumOfSquares(p, 1.0f);
    norm = std::sqrt(sum);
    if (!std::isfinite(sum)) {
      norm = std::ldexp(std::sqrt(SumOfSquares(p, 0x1p-80f)), 80);
    } else if (sum < 0x1p-80) {
      norm = std::ldexp(std::sqrt(SumOfSquares(p, 0x1p80f)), -80);
    }
  } else {
    for (const float value : p) norm = std::max<double>(norm, std::abs(value));
  }
  const auto m = static_cast<float>(std::min<double>(norm, 0x1.fffffp127));
  return m < 0x1p-96f ? 0.0f : m;
}

int Exponent(float value, uint32_t added) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  return static_cast<int>((bits + added) >> 23) - 127;
}

uint32_t CodeOf(float p, float m, const Grid& grid, uint32_t random) {
  const auto s = static_cast<int>(grid.s);
  if (grid.s == 0) {
    const float g = 32768.0f / m;
    return std::nearbyint(p * g) + random >= 32768 ? 0 : 1;
  }
  int k = 0;
  if (grid.natural) {
    const float g = 0x1p24f / m;
    const float z = std::abs(p) * g;
    const float l = std::ldexp(1.0f, 25 - s);
    const float w = z < l ? z + l : z;
    k = std::min(s, Exponent(w, 128 * random + 64) - 25 + s + (z < l ? 0 : 1));
  } else {
    const float g = 65536.0f * static_cast<float>(s) / m;
    const double z = std::nearbyint(std::abs(p) * g);
    k = std::min(s, static_cast<int>(std::floor((z + random) / 65536)));
  }
  return static_cast<uint32_t>(k) + (p < 0 && k > 0 ? 1u << (grid.b - 1) : 0u);
}

float ValueOf(uint32_t code, float m, const Grid& grid) {
  const uint32_t minus = 1u << (grid.b - 1);
  const uint32_t k = code % minus;
  float magnitude = m;
  if (grid.s > 0 && grid.natural) {
    magnitude = k == 0 ? 0 : std::ldexp(m, static_cast<int>(k) - static_cast<int>(grid.s));
  } else if (grid.s > 0) {
    const float step = m / static_cast<float>(grid.s);
    magnitude = static_cast<float>(k) * step;
  }
  return code >= minus ? -magnitude : magnitude;
}

// Returns the position of bit `bit` of element i's code, counted from the first bit after m.
size_t BitPlace(size_t i, uint32_t bit, size_t n, uint32_t b) {
  const size_t group = i / kGroup;
  const size_t before = group * kGroup * b;
  const size_t j = i % kGroup;
  if (group == n / kGroup) return before + j * b + bit;
  const size_t in_lane = j / 16 * b + bit;
  const size_t word = in_lane / 32 * 16 + j % 16;
  return before + word * 32 + in_lane % 32;
}

}  // namespace

Bytes EncodeDither(const Spec& spec, const std::vector<float>& p, Keys keys) {
  const Grid grid(spec);
  const size_t n = p.size();
  Bytes out;
  if (n == 0) return out;
  const float m = NormOf(p, grid.l2);
  PutF32(&out, m);
  out.resize(4 + (n * grid.b + 7) / 8);
  for (size_t i = 0; i < n && m > 0; ++i) {
    const uint32_t code = CodeOf(p[i], m, grid, DrawBits16(keys, static_cast<uint32_t>(i)));
    for (uint32_t bit = 0; bit < grid.b; ++bit) {
      const size_t place = BitPlace(i, bit, n, grid.b);
      out[4 + place / 8] |= static_cast<uint8_t>((code >> bit & 1) << place % 8);
    }
  }
  return out;
}

std::vector<float> DecodeDither(const Spec& spec, const Bytes& in, size_t n) {
  const Grid grid(spec);
  std::vector<float> y(n);
  if (n == 0) return y;
  const float m = GetF32(in, 0);
  for (size_t i = 0; i < n; ++i) {
    uint32_t code = 0;
    for (uint32_t bit = 0; bit < grid.b; ++bit) {
      const size_t place = BitPlace(i, bit, n, grid.b);
      code |= (in.at(4 + place / 8) >> place % 8 & 1u) << bit;
    }
    y[i] = ValueOf(code, m, grid);
  }
  return y;
}

}  // namespace bdn::reference
