#include "tests/reference/codec_reference.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <limits>
#include <numeric>

namespace bdn::reference {
void PutU16(Bytes* out, uint32_t value) {
  out->push_back(static_cast<uint8_t>(value & 255));
  out->push_back(static_cast<uint8_t>(value >> 8 & 255));
}
void PutU32(Bytes* out, uint32_t value) {
  PutU16(out, value & 65535);
  PutU16(out, value >> 16);
}
void PutF32(Bytes* out, float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  PutU32(out, bits);
}

uint32_t GetU16(const Bytes& in, size_t at) { return in.at(at) + 256u * in.at(at + 1); }
uint32_t GetU32(const Bytes& in, size_t at) { return GetU16(in, at) + 65536u * GetU16(in, at + 2); }
float GetF32(const Bytes& in, size_t at) {
  const uint32_t bits = GetU32(in, at);
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

uint32_t DrawWord(Keys keys, uint32_t j) {
  uint32_t x = j * 0x9E3779B9u + keys.k0;
  x = (x ^ x >> 16) * 0x21F0AAADu;
  x = (x ^ x >> 15) + keys.k1;
  x *= 0x735A2D97u;
  return x ^ x >> 15;
}

uint32_t DrawBits16(Keys keys, uint32_t i) {
  const uint32_t word = DrawWord(keys, i / 2);
  return i % 2 == 0 ? word % 65536 : word / 65536;
}

Spec Spec::Of(const std::string& text) {
  Spec spec;
  const size_t open = text.find('(');
  spec.name = text.substr(0, open);
  if (open == std::string::npos) return spec;
  std::string rest = text.substr(open + 1, text.size() - open - 2);
  while (!rest.empty()) {
    const size_t comma = std::min(rest.find(','), rest.size());
    const std::string option = rest.substr(0, comma);
    const size_t equals = option.find('=');
    spec.options[option.substr(0, equals)] = option.substr(equals + 1);
    rest.erase(0, comma + 1);
  }
  return spec;
}

double Spec::Number(const std::string& option, double otherwise) const {
  return options.count(option) == 0 ? otherwise : std::stod(options.at(option));
}

std::string Spec::Word(const std::string& option, const std::string& otherwise) const {
  return options.count(option) == 0 ? otherwise : options.at(option);
}

namespace {

// A 16-bit format by the list of its finite values of no sign, 0 first: entry i is what bits i
// mean.
class SmallFloat {
 public:
  SmallFloat(int mantissa_bits, int least_exponent, size_t num_finite) {
    const uint32_t per_exponent = 1u << mantissa_bits;
    for (uint32_t bits = 0; bits < num_finite; ++bits) {
      const uint32_t exponent = bits / per_exponent;
      const uint32_t fraction = bits % per_exponent;
      const double whole = exponent == 0 ? fraction : per_exponent + fraction;
      const int power = least_exponent + static_cast<int>(exponent == 0 ? 0 : exponent - 1);
      values_.push_back(std::ldexp(whole, power));
    }
  }
  uint32_t Round(float value) const {
    const uint32_t sign = std::signbit(value) ? 0x8000 : 0;
    const double wanted = std::fabs(static_cast<double>(value));
    const auto above = std::lower_bound(values_.begin(), values_.end(), wanted);
    if (above == values_.end()) return sign | static_cast<uint32_t>(values_.size() - 1);
    auto bits = static_cast<uint32_t>(above - values_.begin());
    if (*above != wanted) {
      const double up = *above - wanted;
      const double down = wanted - values_[bits - 1];
      if (down < up || (down == up && bits % 2 == 1)) --bits;
    }
    return sign | bits;
  }
  float Value(uint32_t bits) const {
    const double magnitude = values_.at(bits & 0x7fff);
    return static_cast<float>((bits & 0x8000) != 0 ? -magnitude : magnitude);
  }

 private:
  std::vector<double> values_;
};

const SmallFloat& BrainFloat() {
  static const SmallFloat brain(7, -133, 0x7f80);
  return brain;
}

const SmallFloat& FormatOf(const Spec& codec) {
  static const SmallFloat half(10, -24, 0x7c00);
  return codec.name == "fp16" ? half : BrainFloat();
}

double SumOfMagnitudes(const std::vector<float>& p, size_t begin, size_t end, float factor) {
  double total = 0;
  for (size_t run = begin; run < end; run += 1024) {
    float lane[16] = {};
    for (size_t j = 0; j < 1024 && run + j < end; ++j) {
      lane[j % 16] += std::fabs(p[run + j] * factor);
    }
    double joined[16];
    for (int l = 0; l < 16; ++l) joined[l] = lane[l];
    for (int l = 0; l < 8; ++l) joined[l] += joined[l + 8];
    for (int l = 0; l < 4; ++l) joined[l] += joined[l + 4];
    for (int l = 0; l < 2; ++l) joined[l] += joined[l + 2];
    total += joined[0] + joined[1];
  }
  return total;
}

float Mean(const std::vector<float>& p, size_t begin, size_t end) {
  double sum = SumOfMagnitudes(p, begin, end, 1.0f);
  if (!std::isfinite(sum)) sum = SumOfMagnitudes(p, begin, end, 1.0f / 256) * 256;
  const double mean = sum / static_cast<double>(end - begin);
  const double most = std::numeric_limits<float>::max();
  return static_cast<float>(mean > most ? most : mean);
}

size_t BlockLength(const Spec& codec, size_t n) {
  const auto block = static_cast<size_t>(codec.Number("block", 0));
  return block == 0 ? n : block;
}

size_t NumBlocks(const Spec& codec, size_t n) {
  return n == 0 ? 0 : (n + BlockLength(codec, n) - 1) / BlockLength(codec, n);
}

bool HasBrainScales(const Spec& codec) {
  return codec.name == "twobit" || codec.Word("scale", "fp32") == "bf16";
}

// The scales before the bitmaps, and what a decoder makes of them.
size_t BytesOfScales(const Spec& codec, size_t n) {
  const size_t num_blocks = NumBlocks(codec, n);
  return HasBrainScales(codec) ? (num_blocks + 1) / 2 * 4 : 4 * num_blocks;
}

float ScaleOf(const Spec& codec, const Bytes& in, size_t b) {
  return HasBrainScales(codec) ? BrainFloat().Value(GetU16(in, 2 * b)) : GetF32(in, 4 * b);
}

Bytes Scales(const Spec& codec, const std::vector<float>& p) {
  const size_t length = BlockLength(codec, p.size());
  Bytes out;
  for (size_t begin = 0; begin < p.size(); begin += length) {
    float scale = Mean(p, begin, std::min(p.size(), begin + length));
    if (codec.name == "twobit") scale = std::min(scale * 0.624f, std::ldexp(1.328125f, 126));
    if (HasBrainScales(codec)) {
      PutU16(&out, BrainFloat().Round(scale));
    } else {
      PutF32(&out, scale);
    }
  }
  if (out.size() % 4 != 0) PutU16(&out, 0);
  return out;
}

// A bit an element of those that `is_set` says.
template <typename IsSet>
void PutBitmap(Bytes* out, size_t n, const IsSet& is_set) {
  for (size_t begin = 0; begin < n; begin += 32) {
    uint32_t word = 0;
    for (size_t j = 0; j < 32 && begin + j < n; ++j) {
      if (is_set(begin + j)) word += 1u << j;
    }
    PutU32(out, word);
  }
}

bool BitOf(const Bytes& in, size_t bitmap, size_t i) {
  return (GetU32(in, bitmap + 4 * (i / 32)) >> (i % 32) & 1) != 0;
}

Bytes EncodeOneBit(const Spec& codec, const std::vector<float>& p) {
  Bytes out = Scales(codec, p);
  PutBitmap(&out, p.size(), [&](size_t i) { return p[i] < 0; });
  return out;
}

std::vector<float> DecodeOneBit(const Spec& codec, const Bytes& in, size_t n) {
  std::vector<float> decoded;
  for (size_t i = 0; i < n; ++i) {
    const float scale = ScaleOf(codec, in, i / BlockLength(codec, n));
    decoded.push_back(BitOf(in, BytesOfScales(codec, n), i) ? -scale : scale);
  }
  return decoded;
}

Bytes EncodeTwoBit(const Spec& codec, const std::vector<float>& p) {
  const size_t length = BlockLength(codec, p.size());
  const Bytes scales = Scales(codec, p);
  Bytes out = scales;
  PutBitmap(&out, p.size(), [&](size_t i) { return p[i] < 0; });
  PutBitmap(&out, p.size(),
            [&](size_t i) { return std::fabs(p[i]) > 2 * ScaleOf(codec, scales, i / length); });
  return out;
}

std::vector<float> DecodeTwoBit(const Spec& codec, const Bytes& in, size_t n) {
  std::vector<float> decoded;
  const size_t negative = BytesOfScales(codec, n);
  const size_t large = negative + (n + 31) / 32 * 4;
  for (size_t i = 0; i < n; ++i) {
    const float scale = ScaleOf(codec, in, i / BlockLength(codec, n));
    const float level = BitOf(in, large, i) ? 3 * scale : scale;
    decoded.push_back(BitOf(in, negative, i) ? -level : level);
  }
  return decoded;
}

Bytes EncodeSign(const std::vector<float>& p) {
  if (p.empty()) return {};
  const bool zeros = std::count(p.begin(), p.end(), 0.0f) > 0;
  const size_t num_words = (p.size() + 31) / 32;
  std::vector<uint32_t> words((zeros ? 2 : 1) * num_words);
  for (size_t i = 0; i < p.size(); ++i) {
    if (p[i] < 0) words[i / 32] += 1u << (i % 32);
    if (p[i] == 0) words[num_words + i / 32] += 1u << (i % 32);
  }
  Bytes out;
  PutU32(&out, zeros ? 1 : 0);
  for (const uint32_t word : words) PutU32(&out, word);
  return out;
}

std::vector<float> DecodeSign(const Bytes& in, size_t n) {
  std::vector<float> decoded(n, 1.0f);
  const size_t num_words = (n + 31) / 32;
  const auto bit = [&](size_t word, size_t i) {
    return (GetU32(in, 4 + 4 * (word + i / 32)) >> (i % 32) & 1) != 0;
  };
  for (size_t i = 0; i < n; ++i) {
    if (bit(0, i)) decoded[i] = -1.0f;
    if (GetU32(in, 0) == 1 && bit(num_words, i)) decoded[i] = 0.0f;
  }
  return decoded;
}

// Returns how many elements are sent where a sample chooses.
size_t NumAboveSample(const std::vector<float>& p, size_t k) {
  const size_t n = p.size();
  if (n == 0) return 0;
  const size_t period = n >= 524288 ? 4096 : n >= 32768 ? 512 : 64;
  std::vector<float> sample;
  for (size_t i = 0; i < n; ++i) {
    if (i % period < 64) sample.push_back(std::fabs(p[i]));
  }
  std::sort(sample.begin(), sample.end(), std::greater<>());
  const float least = sample[std::max<size_t>(1, k * sample.size() / n) - 1];
  const auto above = static_cast<size_t>(
      std::count_if(p.begin(), p.end(), [&](float value) { return std::fabs(value) >= least; }));
  return above > 2 * k ? k : above;
}

// The values of topk with values=twobit: block by block the magnitudes, then both bitmaps.
void PutTwoBitValues(Bytes* out, const std::vector<float>& values) {
  const size_t num_words = (values.size() + 31) / 32;
  std::vector<uint32_t> words(2 * num_words);
  const auto mean = [](const std::vector<double>& of) {
    double sum = 0;
    for (const double magnitude : of) sum += magnitude;
    return of.empty() ? 0 : sum / static_cast<double>(of.size());
  };
  for (size_t first = 0; first < values.size(); first += 64) {
    const size_t end = std::min(values.size(), first + 64);
    std::vector<double> all;
    for (size_t i = first; i < end; ++i) all.push_back(std::fabs(values[i]));
    std::vector<double> low;
    std::vector<double> high;
    for (size_t i = first; i < end; ++i) {
      const double magnitude = std::fabs(values[i]);
      const bool large = magnitude > mean(all);
      (large ? high : low).push_back(magnitude);
      if (values[i] < 0) words[i / 32] += 1u << (i % 32);
      if (large) words[num_words + i / 32] += 1u << (i % 32);
    }
    PutU16(out, BrainFloat().Round(static_cast<float>(mean(low))));
    PutU16(out, BrainFloat().Round(static_cast<float>(mean(high))));
  }
  for (const uint32_t word : words) PutU32(out, word);
}

float TwoBitValue(const Bytes& in, size_t values, size_t k, size_t i) {
  const size_t negative = values + (k + 63) / 64 * 4;
  const size_t large = negative + (k + 31) / 32 * 4;
  const float magnitude =
      BrainFloat().Value(GetU16(in, values + i / 64 * 4 + (BitOf(in, large, i) ? 2 : 0)));
  return BitOf(in, negative, i) ? -magnitude : magnitude;
}

Bytes EncodeTopK(const Spec& codec, const std::vector<float>& p) {
  const size_t n = p.size();
  const auto wanted =
      static_cast<size_t>(std::ceil(codec.Number("ratio", 0) * static_cast<double>(n)));
  const size_t exact = n == 0 ? 0 : std::min(n, std::max<size_t>(1, wanted));
  const size_t k = codec.Word("select", "exact") == "sampled" ? NumAboveSample(p, exact) : exact;
  const bool half = codec.Word("values", "fp32") == "fp16";
  static const SmallFloat format(10, -24, 0x7c00);
  std::vector<uint32_t> order(n);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](uint32_t a, uint32_t b) { return std::fabs(p[a]) > std::fabs(p[b]); });
  order.resize(k);
  std::sort(order.begin(), order.end());
  std::vector<uint32_t> counts((n + 65535) / 65536);
  for (const uint32_t i : order) ++counts[i / 65536];
  Bytes out;
  PutU32(&out, static_cast<uint32_t>(k));
  for (const uint32_t count : counts) PutU32(&out, count);
  for (const uint32_t i : order) PutU16(&out, i % 65536);
  if (k % 2 == 1) PutU16(&out, 0);
  if (codec.Word("values", "fp32") == "twobit") {
    std::vector<float> values;
    for (const uint32_t i : order) values.push_back(p[i]);
    PutTwoBitValues(&out, values);
    return out;
  }
  for (const uint32_t i : order) half ? PutU16(&out, format.Round(p[i])) : PutF32(&out, p[i]);
  if (half && k % 2 == 1) PutU16(&out, 0);
  return out;
}

std::vector<float> DecodeTopK(const Spec& codec, const Bytes& in, size_t n) {
  const bool two_bits = codec.Word("values", "fp32") == "twobit";
  const bool half = codec.Word("values", "fp32") == "fp16";
  static const SmallFloat format(10, -24, 0x7c00);
  std::vector<float> decoded(n, 0.0f);
  const size_t k = GetU32(in, 0);
  const size_t num_blocks = (n + 65535) / 65536;
  const size_t indices = 4 + 4 * num_blocks;
  const size_t values = indices + 2 * k + (k % 2) * 2;
  size_t at = 0;
  for (size_t b = 0; b < num_blocks; ++b) {
    for (uint32_t left = GetU32(in, 4 + 4 * b); left > 0; --left, ++at) {
      decoded.at(b * 65536 + GetU16(in, indices + 2 * at)) =
          two_bits ? TwoBitValue(in, values, k, at)
          : half   ? format.Value(GetU16(in, values + 2 * at))
                   : GetF32(in, values + 4 * at);
    }
  }
  return decoded;
}

}  // namespace

Bytes Encode(const std::string& text, const std::vector<float>& p, Keys keys) {
  const Spec codec = Spec::Of(text);
  if (codec.name == "onebit") return EncodeOneBit(codec, p);
  if (codec.name == "twobit") return EncodeTwoBit(codec, p);
  if (codec.name == "sign") return EncodeSign(p);
  if (codec.name == "topk") return EncodeTopK(codec, p);
  if (codec.name == "randomk" || codec.name == "blocks") return EncodeDrawn(codec, p, keys);
  if (codec.name == "dither") return EncodeDither(codec, p, keys);
  if (codec.name.starts_with("int")) return EncodeInteger(codec, p, keys);
  if (codec.name == "sketch") return EncodeSketch(codec, p, keys);
  if (codec.name == "exactsketch") return EncodeExactSketch(codec, p, keys);
  Bytes out;  // none, fp16 and bf16 go element by element
  for (const float value : p) {
    if (codec.name == "none") {
      PutF32(&out, value);
    } else {
      PutU16(&out, FormatOf(codec).Round(value));
    }
  }
  return out;
}

std::vector<float> Decode(const std::string& text, const Bytes& payload, size_t n) {
  const Spec codec = Spec::Of(text);
  if (codec.name == "onebit") return DecodeOneBit(codec, payload, n);
  if (codec.name == "twobit") return DecodeTwoBit(codec, payload, n);
  if (codec.name == "sign") return DecodeSign(payload, n);
  if (codec.name == "topk") return DecodeTopK(codec, payload, n);
  if (codec.name == "randomk" || codec.name == "blocks") return DecodeDrawn(codec, payload, n);
  if (codec.name == "dither") return DecodeDither(codec, payload, n);
  if (codec.name.starts_with("int")) return DecodeInteger(codec, payload, n);
  if (codec.name == "sketch") return DecodeSketch(codec, payload, n);
  if (codec.name == "exactsketch") return DecodeExactSketch(codec, payload, n);
  std::vector<float> decoded;
  for (size_t i = 0; i < n; ++i) {
    decoded.push_back(codec.name == "none" ? GetF32(payload, 4 * i)
                                           : FormatOf(codec).Value(GetU16(payload, 2 * i)));
  }
  return decoded;
}

Bytes EncodeFloat64(const std::vector<double>& p) {
  Bytes out;
  for (const double value : p) {
    uint64_t bits;
    std::memcpy(&bits, &value, 8);
    PutU32(&out, static_cast<uint32_t>(bits));
    PutU32(&out, static_cast<uint32_t>(bits >> 32));
  }
  return out;
}

}  // namespace bdn::reference
