#ifndef BANDONEON_COMMON_CERTS_TOKEN_PROOF_H_
#define BANDONEON_COMMON_CERTS_TOKEN_PROOF_H_

#include <string>
#include <string_view>

namespace bdn {

// What shows that one has the token without saying it: HMAC-SHA256 of `challenge`, 32 bytes. Who has not
// the token learns nothing of it but by guessing, so it has to be a random one.
std::string TokenProof(std::string_view token, std::string_view challenge);
// Takes as long for any two of the same length.
bool SameProof(std::string_view a, std::string_view b);

}  // namespace bdn

#endif  // BANDONEON_COMMON_CERTS_TOKEN_PROOF_H_
