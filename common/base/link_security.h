#ifndef BANDONEON_COMMON_BASE_LINK_SECURITY_H_
#define BANDONEON_COMMON_BASE_LINK_SECURITY_H_

#include <algorithm>
#include <array>
#include <compare>
#include <string_view>
#include <utility>

#include "absl/status/statusor.h"

namespace bdn {

// The public half of the CURVE key pair (Curve25519) that a process makes for itself when it
// starts, and by which it is known on the data plane. All zero is no key.
struct PublicKey {
  static constexpr size_t kBytes = 32;
  std::array<unsigned char, kBytes> bytes{};

  // Parses 32 bytes, or an empty text as no key. Any other length is InvalidArgument.
  static absl::StatusOr<PublicKey> FromBytes(std::string_view text);
  // Returns the 32 bytes; empty for no key.
  std::string_view view() const {
    return {reinterpret_cast<const char*>(bytes.data()), empty() ? 0 : kBytes};
  }
  bool empty() const {
    return std::all_of(bytes.begin(), bytes.end(), [](unsigned char byte) { return byte == 0; });
  }

  auto operator<=>(const PublicKey&) const = default;
  template <typename H>
  friend H AbslHashValue(H h, const PublicKey& key) {
    return H::combine(std::move(h), key.bytes);
  }
};

// The proof that a server's data port asks of a process that connects, and whether it encrypts.
enum class LinkSecurity : unsigned char {
  kOpen = 0,           // asks for nothing; in the clear
  kAuthenticated = 1,  // asks for the job's data secret and a CURVE key of the roster; in the clear
  kEncrypted = 2,      // asks for the private half of a CURVE key of the roster; encrypted
};
inline constexpr LinkSecurity kLastLinkSecurity = LinkSecurity::kEncrypted;

// Returns "open", "authenticated" or "encrypted".
const char* LinkSecurityName(LinkSecurity security);

}  // namespace bdn

#endif  // BANDONEON_COMMON_BASE_LINK_SECURITY_H_
