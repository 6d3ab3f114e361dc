#ifndef BANDONEON_TESTS_REFERENCE_CODEC_REFERENCE_H_
#define BANDONEON_TESTS_REFERENCE_CODEC_REFERENCE_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

// A second form of every codec, written from the layouts in compressors/*.h alone: plain, slow, one
// element at a time, and without a line of the code that it checks.

namespace bdn::reference {

using Bytes = std::vector<uint8_t>;

// A codec's spec, taken apart: "topk(ratio=0.01)" has name topk and an option ratio.
struct Spec {
  std::string name;
  std::map<std::string, std::string> options;

  static Spec Of(const std::string& text);
  double Number(const std::string& option, double otherwise) const;
  std::string Word(const std::string& option, const std::string& otherwise) const;
};

// The keys of a draw, by which a codec chooses its random bits.
struct Keys {
  uint32_t k0 = 0;
  uint32_t k1 = 0;
};
// Return word j of the draw (common/base/draw.h), and the 16 bits of element i.
uint32_t DrawWord(Keys keys, uint32_t j);
uint32_t DrawBits16(Keys keys, uint32_t i);

// Returns the payload of p, which is finite and already scaled.
Bytes Encode(const std::string& spec, const std::vector<float>& p, Keys keys);
// Returns the n elements of a valid payload.
std::vector<float> Decode(const std::string& spec, const Bytes& payload, size_t n);

// One pair a family of codecs, each in a file of its own.
Bytes EncodeDrawn(const Spec& spec, const std::vector<float>& p, Keys keys);  // randomk, blocks
std::vector<float> DecodeDrawn(const Spec& spec, const Bytes& in, size_t n);
Bytes EncodeDither(const Spec& spec, const std::vector<float>& p, Keys keys);
std::vector<float> DecodeDither(const Spec& spec, const Bytes& in, size_t n);
Bytes EncodeInteger(const Spec& spec, const std::vector<float>& p, Keys keys);  // int8, int4, int2
std::vector<float> DecodeInteger(const Spec& spec, const Bytes& in, size_t n);
Bytes EncodeSketch(const Spec& spec, const std::vector<float>& p, Keys keys);
std::vector<float> DecodeSketch(const Spec& spec, const Bytes& in, size_t n);
Bytes EncodeExactSketch(const Spec& spec, const std::vector<float>& p, Keys keys);
std::vector<float> DecodeExactSketch(const Spec& spec, const Bytes& in, size_t n);

// Little-endian pieces of a payload. Get... throw std::out_of_range past its end.
void PutU16(Bytes* out, uint32_t value);
void PutU32(Bytes* out, uint32_t value);
void PutF32(Bytes* out, float value);
uint32_t GetU16(const Bytes& in, size_t at);
uint32_t GetU32(const Bytes& in, size_t at);
float GetF32(const Bytes& in, size_t at);

// `none` of float64.
Bytes EncodeFloat64(const std::vector<double>& p);

}  // namespace bdn::reference

#endif  // BANDONEON_TESTS_REFERENCE_CODEC_REFERENCE_H_
