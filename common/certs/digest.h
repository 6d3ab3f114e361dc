#ifndef BANDONEON_COMMON_CERTS_DIGEST_H_
#define BANDONEON_COMMON_CERTS_DIGEST_H_

#include <array>
#include <cstddef>

#include "common/base/bytes.h"

namespace bdn {

// SHA-256 of bytes: who has it has them, as far as anybody knows how to make two with one.
using Digest = std::array<std::byte, 32>;
// One pass.
Digest DigestOf(ByteSpan bytes);

}  // namespace bdn

#endif  // BANDONEON_COMMON_CERTS_DIGEST_H_
