#include "common/base/link_security.h"

#include "common/base/status.h"

namespace bdn {

absl::StatusOr<PublicKey> PublicKey::FromBytes(std::string_view text) {
  PublicKey key;
  if (text.empty()) return key;
  if (text.size() != kBytes) {
    return InvalidArgument("a public key of %d bytes, expected %d", text.size(), kBytes);
  }
  std::copy(text.begin(), text.end(), key.bytes.begin());
  return key;
}

const char* LinkSecurityName(LinkSecurity security) {
  switch (security) {
    case LinkSecurity::kOpen:
      return "open";
    case LinkSecurity::kAuthenticated:
      return "authenticated";
    case LinkSecurity::kEncrypted:
      return "encrypted";
  }
  return "unknown";
}

}  // namespace bdn
