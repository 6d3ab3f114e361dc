#ifndef BANDONEON_LINK_KEY_LINK_H_
#define BANDONEON_LINK_KEY_LINK_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/cluster/catalogue.h"
#include "link/key_codecs.h"
#include "link/rule_spec.h"

namespace bdn {

// The facts that the workers and the server of a key agree on; each makes them from the same
// catalogue. Of broadcast keys, whose bytes are not encoded, only the hash is set. Immutable;
// thread-safe.
struct KeyLink {
  RuleSpec rule;
  KeyCodecs codecs;
  uint64_t name_hash = 0;  // HashName of the first tensor's name, for Draw
};

// Makes the link of a key. InvalidArgument shows what is wrong with a spec, or says that codecs,
// rule and element type do not go together.
absl::StatusOr<KeyLink> MakeKeyLink(const KeyEntry& entry, const std::string& first_tensor);

// Returns the bytes of the longest payload of a frame about the key, as it is or encoded.
uint64_t LongestPayloadOf(const KeyEntry& entry, const KeyCodecs& codecs);

// Puts the specs of a declaration into canonical form, so that workers that mean the same declare
// the same. Returns the InvalidArgument that MakeKeyLink would return for its keys. REQUIRES: kind
// is kDense.
absl::Status CanonicalizeSpecs(TensorDeclaration* tensor);

}  // namespace bdn

#endif  // BANDONEON_LINK_KEY_LINK_H_
