#ifndef BANDONEON_COMMON_BASE_LINK_SECURITY_H_
#define BANDONEON_COMMON_BASE_LINK_SECURITY_H_

#include <algorithm>
#include <array>
#include <compare>
#include <string_view>
#include <utility>

#include "absl/status/statusor.h"

namespace bdn {

// The public half of the key pair (Curve25519) that a process makes for itself when it starts, and
// is known by on the data plane. All zero is none.
struct PublicKey {
  static constexpr size_t kBytes = 32;
  std::array<unsigned char, kBytes> bytes{};

  // InvalidArgument: neither 32 bytes nor empty, which is none.
  static absl::StatusOr<PublicKey> FromBytes(std::string_view text);
  // Empty for none.
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

// What a server's data port asks of who connects, and how it speaks with him.
enum class LinkSecurity : unsigned char {
  kOpen = 0,           // nothing, in the clear
  kAuthenticated = 1,  // the job's data secret and a key of the roster, in the clear
  kEncrypted = 2,      // the private half of a key of the roster; encrypted
};
inline constexpr LinkSecurity kLastLinkSecurity = LinkSecurity::kEncrypted;

// "open", "authenticated" or "encrypted".
const char* LinkSecurityName(LinkSecurity security);

}  // namespace bdn

#endif  // BANDONEON_COMMON_BASE_LINK_SECURITY_H_
