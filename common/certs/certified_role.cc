#include "common/certs/certified_role.h"

#include <algorithm>
#include <cctype>

#include "common/base/status.h"

namespace bdn {
namespace {

constexpr std::string_view kScheme = "bandoneon://";
// A common name in X.509 has 64 characters at most.
constexpr size_t kMaxNameBytes = 64;

}  // namespace

absl::Status CheckCertifiedName(const char* what, const std::string& name) {
  const auto allowed = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '.' || c == '_' || c == '-';
  };
  if (!name.empty() && name.size() <= kMaxNameBytes && name[0] != '.' &&
      std::all_of(name.begin(), name.end(), allowed)) {
    return absl::OkStatus();
  }
  return InvalidArgument("%s '%s': expected 1 to %d letters, digits, '_', '-' or, not first, '.'",
                         what, name.substr(0, kMaxNameBytes), kMaxNameBytes);
}

absl::Status CheckCertifiedRole(const CertifiedRole& role) {
  BDN_RETURN_IF_ERROR(CheckCertifiedName("job", role.job));
  if (std::find(std::begin(kCertifiedRoles), std::end(kCertifiedRoles), role.role) ==
      std::end(kCertifiedRoles)) {
    return InvalidArgument("role '%s' is none of scheduler, server, worker and observer",
                           role.role.substr(0, kMaxNameBytes));
  }
  return absl::OkStatus();
}

std::string ToUri(const CertifiedRole& role) {
  return std::string(kScheme) + role.job + "/" + role.role;
}

std::optional<CertifiedRole> ParseRoleUri(std::string_view uri) {
  if (uri.substr(0, kScheme.size()) != kScheme) return std::nullopt;
  uri.remove_prefix(kScheme.size());
  const size_t slash = uri.find('/');
  if (slash == std::string_view::npos) return std::nullopt;
  CertifiedRole role{std::string(uri.substr(0, slash)), std::string(uri.substr(slash + 1))};
  if (!CheckCertifiedRole(role).ok()) return std::nullopt;
  return role;
}

}  // namespace bdn
