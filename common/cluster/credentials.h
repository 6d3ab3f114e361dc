#ifndef BANDONEON_COMMON_CLUSTER_CREDENTIALS_H_
#define BANDONEON_COMMON_CLUSTER_CREDENTIALS_H_

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/config.h"
#include "common/certs/certificates.h"

namespace bdn {

// What a process shows to the others of its job, and asks of them: the job's token, a certificate,
// both, or, on one host, neither. main() makes one of the settings and hands it down;
// control_channel.h makes gRPC's credentials of it. Immutable; thread-safe.
class Credentials {
 public:
  Credentials() = default;  // nothing is shown and nothing is asked for
  explicit Credentials(std::string token) : token_(std::move(token)) {}
  // `job` is whose certificates these are, and whose others must be.
  Credentials(std::string token, TlsFiles tls, std::string job)
      : token_(std::move(token)), tls_(std::move(tls)), job_(std::move(job)) {}

  // Of the settings token, token-file, tls-ca, tls-cert, tls-key and insecure, for a process that is
  // `role` ("server"; empty for any that is certified). Reads and checks the files. InvalidArgument
  // names the setting and the file.
  static absl::StatusOr<Credentials> Load(const Config& config, std::string_view role);

  const std::string& token() const { return token_; }
  // Whether a peer that shows `token` may take part. Takes as long for any token of the same
  // length.
  bool Admits(std::string_view token) const;

  bool has_tls() const { return !tls_.empty(); }
  const TlsFiles& tls() const { return tls_; }
  // Whether a peer whose certificate has these URIs may be `role` in the job; empty: any role.
  bool AdmitsRole(const std::vector<std::string>& uris, std::string_view role) const;

  // Whether a process with these may listen at `address`, the value of `setting`: off this host
  // only with certificates, or with a token and `insecure`. InvalidArgument says what to do.
  absl::Status CheckMayListen(const std::string& setting, const std::string& address) const;
  // The same where certificates are of no use, as nothing there is encrypted: off this host only with a token
  // and `insecure`.
  absl::Status CheckMayListenInClear(const std::string& setting, const std::string& address) const;
  // The same for asking a scheduler there.
  absl::Status CheckMayAsk(const std::string& address) const;

 private:
  std::string token_;
  TlsFiles tls_;
  std::string job_;  // of the own certificate
  bool insecure_ = false;
};

}  // namespace bdn

#endif  // BANDONEON_COMMON_CLUSTER_CREDENTIALS_H_
