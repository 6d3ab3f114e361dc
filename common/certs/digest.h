#ifndef BANDONEON_COMMON_CERTS_DIGEST_H_
#define BANDONEON_COMMON_CERTS_DIGEST_H_

#include <array>
#include <cstddef>

#include "common/base/bytes.h"

namespace bdn {

// The SHA-256 of some bytes. Equal digests mean equal bytes, as nobody is known to be able to make
// two texts with one digest.
using Digest = std::array<std::byte, 32>;
// Computes the digest in one pass.
Digest DigestOf(ByteSpan bytes);

}  // namespace bdn

#endif  // BANDONEON_COMMON_CERTS_DIGEST_H_
