#ifndef BANDONEON_COMMON_CERTS_CERTIFIED_ROLE_H_
#define BANDONEON_COMMON_CERTS_CERTIFIED_ROLE_H_

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace bdn {

// A role that a certificate lets its owner take in a job: a URI among its subject's alternative
// names, bandoneon://<job>/<role>. A certificate may have several.
struct CertifiedRole {
  std::string job;
  std::string role;

  bool operator==(const CertifiedRole&) const = default;
};

inline constexpr std::string_view kCertifiedRoles[] = {"scheduler", "server", "worker", "observer"};

// Returns InvalidArgument where a name is not one plain word of a path; `what` says which name it
// is.
absl::Status CheckCertifiedName(const char* what, const std::string& name);
// Returns InvalidArgument where the job is no such name, or the role is not one of kCertifiedRoles.
absl::Status CheckCertifiedRole(const CertifiedRole& role);
std::string ToUri(const CertifiedRole& role);
// Returns nothing for a URI that is not one of ours.
std::optional<CertifiedRole> ParseRoleUri(std::string_view uri);

}  // namespace bdn

#endif  // BANDONEON_COMMON_CERTS_CERTIFIED_ROLE_H_
