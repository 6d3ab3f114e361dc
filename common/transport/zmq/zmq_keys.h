#ifndef BANDONEON_COMMON_TRANSPORT_ZMQ_ZMQ_KEYS_H_
#define BANDONEON_COMMON_TRANSPORT_ZMQ_ZMQ_KEYS_H_

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/link_security.h"

namespace bdn {

// Unimplemented where libzmq was built without CURVE, or with another implementation of it than
// libsodium's (of a libzmq that is linked statically that cannot be told).
absl::Status CheckCurve();

struct KeyPair {
  PublicKey public_key;
  std::string public_text;  // in Z85, as ZeroMQ wants them
  std::string secret_text;
};
absl::StatusOr<KeyPair> MakeKeyPair();

// Five letters for each four bytes. REQUIRES: a multiple of four.
std::string ToZ85(std::string_view bytes);
// Empty where it is not the Z85 of a key.
PublicKey PublicKeyFromZ85(std::string_view text);

}  // namespace bdn

#endif  // BANDONEON_COMMON_TRANSPORT_ZMQ_ZMQ_KEYS_H_
