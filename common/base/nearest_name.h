#ifndef BANDONEON_COMMON_BASE_NEAREST_NAME_H_
#define BANDONEON_COMMON_BASE_NEAREST_NAME_H_

#include <span>
#include <string>
#include <string_view>

namespace bdn {

// Returns the name of `known` nearest to `word` in edit distance, or "" when none is near.
std::string NearestName(std::string_view word, std::span<const std::string> known);

}  // namespace bdn

#endif  // BANDONEON_COMMON_BASE_NEAREST_NAME_H_
