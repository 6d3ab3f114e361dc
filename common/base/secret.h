#ifndef BANDONEON_COMMON_BASE_SECRET_H_
#define BANDONEON_COMMON_BASE_SECRET_H_

#include <string>
#include <string_view>

namespace bdn {

// Returns 32 random bytes of the kernel's generator, which nobody can guess. Ends the process where
// it has none.
std::string RandomSecret();

// Returns whether both are the same. Takes equally long for any two texts of the same length.
bool IsSameSecret(std::string_view a, std::string_view b);

}  // namespace bdn

#endif  // BANDONEON_COMMON_BASE_SECRET_H_
