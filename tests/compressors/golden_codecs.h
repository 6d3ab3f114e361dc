#ifndef BANDONEON_TESTS_COMPRESSORS_GOLDEN_CODECS_H_
#define BANDONEON_TESTS_COMPRESSORS_GOLDEN_CODECS_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

// The contents of tests/golden/codecs.txt, which pins the payloads of codecs.

namespace bdn {

// Nine elements that show the corners: ties, both zeros, a subnormal, a value that saturates.
const std::vector<float>& GoldenCorners();
// A larger array, pinned by a hash of its payload: 70001 of "spread", seed 9.
std::vector<float> GoldenMany();

// The pinned payloads of a codec.
struct Golden {
  std::string corners;    // the payload, in hex
  std::string many_hash;  // Fnv1a of the payload
};

// Reads the lines of "spec hex hash" behind the comments, by spec.
std::map<std::string, Golden> ReadGolden();

std::string Hex(const std::vector<uint8_t>& bytes);
std::vector<uint8_t> Unhex(const std::string& hex);
uint64_t Fnv1a(const std::vector<uint8_t>& bytes);

}  // namespace bdn

#endif  // BANDONEON_TESTS_COMPRESSORS_GOLDEN_CODECS_H_
