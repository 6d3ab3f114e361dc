#include "common/certs/token_proof.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

namespace bdn {

std::string TokenProof(std::string_view token, std::string_view challenge) {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned size = 0;
  // HMAC wants a key that is not null, even where it is empty.
  const char* key = token.empty() ? "" : token.data();
  HMAC(EVP_sha256(), key, static_cast<int>(token.size()),
       reinterpret_cast<const unsigned char*>(challenge.data()), challenge.size(), digest, &size);
  return std::string(reinterpret_cast<const char*>(digest), size);
}

bool SameProof(std::string_view a, std::string_view b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

}  // namespace bdn
