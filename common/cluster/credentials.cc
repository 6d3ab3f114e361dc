#include "common/cluster/credentials.h"

namespace bdn {

bool Credentials::Admits(std::string_view token) const {
  if (token_.empty()) return true;
  if (token.size() != token_.size()) return false;
  unsigned char differs = 0;
  for (size_t i = 0; i < token.size(); ++i) {
    differs |= static_cast<unsigned char>(token[i] ^ token_[i]);
  }
  return differs == 0;
}

}  // namespace bdn
