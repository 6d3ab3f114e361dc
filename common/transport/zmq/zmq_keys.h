#ifndef BANDONEON_COMMON_TRANSPORT_ZMQ_ZMQ_KEYS_H_
#define BANDONEON_COMMON_TRANSPORT_ZMQ_ZMQ_KEYS_H_

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/link_security.h"

namespace bdn {

// Checks that libzmq can encrypt. Unimplemented where it was built without CURVE, or with another
// implementation of it than libsodium's (which cannot be told of a libzmq that is linked
// statically).
absl::Status CheckCurve();

// A CURVE key pair.
struct KeyPair {
  PublicKey public_key;
  std::string public_text;  // both texts in Z85, as ZeroMQ wants them
  std::string secret_text;
};
// Makes a new key pair. Unimplemented where libzmq has no CURVE.
absl::StatusOr<KeyPair> MakeKeyPair();

// Encodes bytes in Z85: five letters for each four bytes. REQUIRES: a multiple of four bytes.
std::string ToZ85(std::string_view bytes);
// Decodes a CURVE key. Returns an empty one where the text is not the Z85 of a key.
PublicKey PublicKeyFromZ85(std::string_view text);

}  // namespace bdn

#endif  // BANDONEON_COMMON_TRANSPORT_ZMQ_ZMQ_KEYS_H_
