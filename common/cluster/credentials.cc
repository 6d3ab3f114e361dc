#include "common/cluster/credentials.h"

#include <algorithm>

#include "common/base/secret.h"
#include "common/base/status.h"
#include "common/certs/small_file.h"
#include "common/cluster/listen_address.h"

namespace bdn {
namespace {

constexpr size_t kMaxTokenBytes = 255;  // the data plane's hello has room for no more
constexpr char kWhatToDo[] =
    "set tls-ca, tls-cert and tls-key (bandoneon certs --help makes them), or, where nobody else "
    "can read the network, set token-file and say --insecure";

absl::StatusOr<std::string> LoadToken(const Config& config) {
  const std::string& path = config.Text("token-file");
  if (path.empty()) return config.Text("token");
  if (!config.Text("token").empty()) {
    return InvalidArgument("settings token and token-file are both given: expected one of them");
  }
  absl::StatusOr<std::string> text = ReadSmallFile(path);
  if (!text.ok()) return Annotate(text.status(), "setting token-file");
  // Editors and `echo` end a file with a line break, which is no part of the token.
  const size_t end = text->find_last_not_of("\r\n");
  text->resize(end == std::string::npos ? 0 : end + 1);
  if (text->empty()) return InvalidArgument("setting token-file: %s is empty", path);
  return text;
}

absl::StatusOr<TlsFiles> LoadTlsFiles(const Config& config) {
  TlsFiles files{config.Text("tls-ca"), config.Text("tls-cert"), config.Text("tls-key")};
  if (files.empty()) return files;
  for (const char* setting : {"tls-ca", "tls-cert", "tls-key"}) {
    if (config.Text(setting).empty()) {
      return InvalidArgument("setting %s is missing: tls-ca, tls-cert and tls-key go together",
                             setting);
    }
  }
  return files;
}

// Returns the job for which the certificate was made.
absl::StatusOr<std::string> CheckOwnRole(const TlsFiles& files, std::string_view role) {
  // Whether a certificate has expired is decided by the time of day, as its maker did.
  const absl::StatusOr<CertificateFacts> facts = CheckTlsFiles(files, absl::Now());
  if (!facts.ok()) return Annotate(facts.status(), "settings tls-ca, tls-cert and tls-key");
  for (const CertifiedRole& certified : facts->roles) {
    if (role.empty() || certified.role == role) return certified.job;
  }
  return InvalidArgument(
      "setting tls-cert: %s is not for a %s: make one by `bandoneon certs issue "
      "--role %s`",
      files.certificate, std::string(role.empty() ? "node of a job" : role),
      std::string(role.empty() ? "observer" : role));
}

}  // namespace

absl::StatusOr<Credentials> Credentials::Load(const Config& config, std::string_view role) {
  Credentials credentials;
  BDN_ASSIGN_OR_RETURN(credentials.token_, LoadToken(config));
  if (credentials.token_.size() > kMaxTokenBytes) {
    return InvalidArgument("the token has %d bytes, more than %d", credentials.token_.size(),
                           kMaxTokenBytes);
  }
  // The characters that a header of HTTP/2 carries unchanged.
  if (!std::all_of(credentials.token_.begin(), credentials.token_.end(),
                   [](char c) { return c >= ' ' && c <= '~'; }) ||
      credentials.token_.starts_with(' ') || credentials.token_.ends_with(' ')) {
    return InvalidArgument("the token: expected printable ASCII that no space begins or ends");
  }
  BDN_ASSIGN_OR_RETURN(credentials.insecure_, config.Bool("insecure"));
  BDN_ASSIGN_OR_RETURN(credentials.tls_, LoadTlsFiles(config));
  if (credentials.has_tls()) {
    BDN_ASSIGN_OR_RETURN(credentials.job_, CheckOwnRole(credentials.tls_, role));
  }
  return credentials;
}

bool Credentials::Admits(std::string_view token) const {
  // A process without a token of its own asks for none.
  return token_.empty() || IsSameSecret(token, token_);
}

bool Credentials::AdmitsRole(const std::vector<std::string>& uris, std::string_view role) const {
  return std::any_of(uris.begin(), uris.end(), [&](const std::string& uri) {
    const auto certified = ParseRoleUri(uri);
    return certified.has_value() && certified->job == job_ &&
           (role.empty() || certified->role == role);
  });
}

absl::Status Credentials::CheckMayListen(const std::string& setting,
                                         const std::string& address) const {
  if (has_tls() || IsLocalAddress(address)) return absl::OkStatus();
  if (token_.empty()) {
    return InvalidArgument("%s is %s, which other hosts reach, and the job has no secret: %s",
                           setting, address, kWhatToDo);
  }
  if (insecure_) return absl::OkStatus();
  return InvalidArgument(
      "%s is %s, which other hosts reach, and the token would be sent in the "
      "clear: %s",
      setting, address, kWhatToDo);
}

absl::Status Credentials::CheckMayListenInClear(const std::string& setting,
                                                const std::string& address) const {
  if (IsLocalAddress(address) || (insecure_ && !token_.empty())) return absl::OkStatus();
  return InvalidArgument(
      "%s is %s, which other hosts reach, and what it shows goes in the clear: listen at "
      "127.0.0.1 and come through a tunnel, as ssh -L makes one, or give a token (token-file) and "
      "say insecure where nobody else reads the network",
      setting, address);
}

absl::Status Credentials::CheckMayAsk(const std::string& address) const {
  if (has_tls() || (insecure_ && !token_.empty()) || IsLocalAddress(address))
    return absl::OkStatus();
  return InvalidArgument(
      "scheduler is %s, on another host, and nothing would tell whether it is "
      "the job's own or keep the token from others: %s",
      address, kWhatToDo);
}

}  // namespace bdn
