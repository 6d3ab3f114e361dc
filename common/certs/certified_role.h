#ifndef BANDONEON_COMMON_CERTS_CERTIFIED_ROLE_H_
#define BANDONEON_COMMON_CERTS_CERTIFIED_ROLE_H_

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace bdn {

// What a certificate says that its owner may be in which job: a URI of its subject's alternative
// names, bandoneon://<job>/<role>. A certificate may have several.
struct CertifiedRole {
  std::string job;
  std::string role;

  bool operator==(const CertifiedRole&) const = default;
};

inline constexpr std::string_view kCertifiedRoles[] = {"scheduler", "server", "worker", "observer"};

// InvalidArgument where a name is more than one plain word of a path; `what` says which it is.
absl::Status CheckCertifiedName(const char* what, const std::string& name);
// InvalidArgument where the job is no such name, or the role is none.
absl::Status CheckCertifiedRole(const CertifiedRole& role);
std::string ToUri(const CertifiedRole& role);
// Nothing for a URI that is not one of ours.
std::optional<CertifiedRole> ParseRoleUri(std::string_view uri);

}  // namespace bdn

#endif  // BANDONEON_COMMON_CERTS_CERTIFIED_ROLE_H_
