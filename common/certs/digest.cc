#include "common/certs/digest.h"

#include <openssl/sha.h>

namespace bdn {

static_assert(sizeof(Digest) == SHA256_DIGEST_LENGTH);

Digest DigestOf(ByteSpan bytes) {
  Digest digest;
  SHA256(reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size(),
         reinterpret_cast<unsigned char*>(digest.data()));
  return digest;
}

}  // namespace bdn
