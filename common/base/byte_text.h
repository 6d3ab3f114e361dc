#ifndef BANDONEON_COMMON_BASE_BYTE_TEXT_H_
#define BANDONEON_COMMON_BASE_BYTE_TEXT_H_

#include <string>

namespace bdn {

// Returns a number of bytes as people read it: "999 B", "1.5 MB".
std::string ByteText(double bytes);

}  // namespace bdn

#endif  // BANDONEON_COMMON_BASE_BYTE_TEXT_H_
