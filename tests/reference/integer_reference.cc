#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/reference/codec_reference.h"

namespace bdn::reference {
namespace {

struct Form {
  size_t bits;
  size_t group;
  bool hadamard;
  bool nearest;
  float most;
};

Form FormOf(const Spec& spec) {
  Form form;
  form.bits = static_cast<size_t>(std::stoi(spec.name.substr(3)));
  form.group = static_cast<size_t>(spec.Number("group", 128));
  form.hadamard = spec.Number("hadamard", 0) == 32;
  form.nearest = spec.Word("round", "stochastic") == "nearest";
  form.most = std::ldexp(1.0f, static_cast<int>(form.bits) - 1) - 1;
  return form;
}

// Every whole block of 32, by the recursion over halves that the strides unroll.
void Transform(std::vector<float>* x) {
  for (size_t block = 0; block + 32 <= x->size(); block += 32) {
    for (size_t stride = 1; stride <= 16; stride *= 2) {
      for (size_t i = 0; i < 32; ++i) {
        if (i / stride % 2 == 1) continue;
        const float a = (*x)[block + i];
        const float b = (*x)[block + i + stride];
        (*x)[block + i] = a + b;
        (*x)[block + i + stride] = a - b;
      }
    }
  }
}

// Returns whether all values that a scale can stand for are finite.
bool ScaleIsSafe(const Form& form, float scale) {
  const float farthest = form.most * scale;
  return std::isfinite(form.hadamard ? 32 * farthest : farthest);
}

// The 32 * bits / 8 bytes of element i's run, and where in them it is.
size_t ByteOf(const Form& form, size_t i) {
  return i / 32 * 4 * form.bits + i % 32 % (4 * form.bits);
}
size_t ShiftOf(const Form& form, size_t i) { return i % 32 / (4 * form.bits) * form.bits; }

}  // namespace

Bytes EncodeInteger(const Spec& spec, const std::vector<float>& p, Keys keys) {
  const Form form = FormOf(spec);
  const size_t n = p.size();
  std::vector<float> c = p;
  if (form.hadamard) {
    for (size_t i = 0; i < n / 32 * 32; ++i) c[i] = c[i] / 32;
    Transform(&c);
  }
  Bytes out;
  std::vector<int> q(n, 0);
  for (size_t begin = 0; begin < n; begin += form.group) {
    const size_t end = std::min(n, begin + form.group);
    float m = 0;
    for (size_t i = begin; i < end; ++i) m = std::max(m, std::abs(c[i]));
    float scale = 0;
    if (m >= std::ldexp(1.0f, -100)) {
      scale = m / form.most;
      while (!ScaleIsSafe(form, scale)) {
        // In strides first: the way can be long.
        const float lower = scale * 0.999f;
        scale = ScaleIsSafe(form, lower) ? std::nextafter(scale, 0.0f) : lower;
      }
      const float inverse = form.most / m;
      for (size_t i = begin; i < end; ++i) {
        float z = c[i] * inverse;
        const double drawn = DrawBits16(keys, static_cast<uint32_t>(i)) + 0.5;
        if (!form.nearest) z = std::floor(z + static_cast<float>(drawn / 65536));
        q[i] = static_cast<int>(std::nearbyint(std::clamp(z, -form.most, form.most)));
      }
    }
    PutF32(&out, scale);
  }
  const size_t codes = out.size();
  for (size_t i = 0; i < n; ++i) {
    const size_t at = codes + ByteOf(form, i);
    if (at >= out.size()) out.resize(at + 1);
    const auto code = static_cast<unsigned>(q[i]) % (1u << form.bits);
    out[at] = static_cast<uint8_t>(out[at] | code << ShiftOf(form, i));
  }
  return out;
}

std::vector<float> DecodeInteger(const Spec& spec, const Bytes& in, size_t n) {
  const Form form = FormOf(spec);
  const size_t codes = (n + form.group - 1) / form.group * 4;
  std::vector<float> c(n);
  for (size_t i = 0; i < n; ++i) {
    const int levels = 1 << form.bits;
    int q = in.at(codes + ByteOf(form, i)) >> ShiftOf(form, i) & (levels - 1);
    if (q >= levels / 2) q -= levels;
    c[i] = static_cast<float>(q) * GetF32(in, i / form.group * 4);
  }
  if (form.hadamard) Transform(&c);
  return c;
}

}  // namespace bdn::reference
