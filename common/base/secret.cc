#include "common/base/secret.h"

#include <sys/random.h>

#include <cerrno>
#include <cstdlib>

#include "common/base/log.h"

namespace bdn {

std::string RandomSecret() {
  std::string secret(32, '\0');
  // getrandom returns so few bytes at once; interrupted before the generator is ready, it returns
  // none.
  ssize_t got;
  do {
    got = getrandom(secret.data(), secret.size(), 0);
  } while (got < 0 && errno == EINTR);
  if (got != static_cast<ssize_t>(secret.size())) {
    LogError("the kernel gives no random bytes");
    std::abort();
  }
  return secret;
}

bool IsSameSecret(std::string_view a, std::string_view b) {
  if (a.size() != b.size()) return false;
  // No early return: the time must not tell how many bytes agree.
  unsigned char differs = 0;
  for (size_t i = 0; i < a.size(); ++i) differs |= static_cast<unsigned char>(a[i] ^ b[i]);
  return differs == 0;
}

}  // namespace bdn
