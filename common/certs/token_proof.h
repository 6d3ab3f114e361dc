#ifndef BANDONEON_COMMON_CERTS_TOKEN_PROOF_H_
#define BANDONEON_COMMON_CERTS_TOKEN_PROOF_H_

#include <string>
#include <string_view>

namespace bdn {

// Returns the proof that its maker has the token, without revealing it: the HMAC-SHA256 of
// `challenge`, 32 bytes. A process without the token learns nothing of it except by guessing, so
// the token has to be random.
std::string TokenProof(std::string_view token, std::string_view challenge);
// Compares two proofs, in the same time for any two of the same length.
bool SameProof(std::string_view a, std::string_view b);

}  // namespace bdn

#endif  // BANDONEON_COMMON_CERTS_TOKEN_PROOF_H_
