#ifndef BANDONEON_TESTS_SUPPORT_NORMAL_VALUES_H_
#define BANDONEON_TESTS_SUPPORT_NORMAL_VALUES_H_

#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

namespace bdn {

// Normally distributed values, the same for the same seed.
inline std::vector<float> Normal(size_t n, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(n);
  for (float& value : values) value = normal(random);
  return values;
}

}  // namespace bdn

#endif  // BANDONEON_TESTS_SUPPORT_NORMAL_VALUES_H_
