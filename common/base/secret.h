#ifndef BANDONEON_COMMON_BASE_SECRET_H_
#define BANDONEON_COMMON_BASE_SECRET_H_

#include <string>
#include <string_view>

namespace bdn {

// 32 bytes that nobody can guess, of the kernel's generator. Ends the process where there is none.
std::string RandomSecret();

// Whether both are the same. Takes as long for any two of the same lengths.
bool IsSameSecret(std::string_view a, std::string_view b);

}  // namespace bdn

#endif  // BANDONEON_COMMON_BASE_SECRET_H_
