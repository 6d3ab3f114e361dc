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

// The proofs that a process shows to the others of its job, and asks of them: the job's token, a
// certificate, both, or, within one machine, neither. main() makes one from the settings and hands
// it down; control_channel.h makes gRPC's credentials of it. Immutable; thread-safe.
class Credentials {
 public:
  Credentials() = default;  // shows nothing and asks for nothing
  explicit Credentials(std::string token) : token_(std::move(token)) {}
  // `job` is the job of these certificates, and so of those that others must show.
  Credentials(std::string token, TlsFiles tls, std::string job)
      : token_(std::move(token)), tls_(std::move(tls)), job_(std::move(job)) {}

  // Reads the settings token, token-file, tls-ca, tls-cert, tls-key and insecure, for a process
  // that is `role` ("server"; empty for any that is certified). Reads and checks the files.
  // InvalidArgument names the setting and the file.
  static absl::StatusOr<Credentials> Load(const Config& config, std::string_view role);

  const std::string& token() const { return token_; }
  // Returns whether a peer that shows `token` may take part. Takes equally long for any token of
  // the same length.
  bool Admits(std::string_view token) const;

  bool has_tls() const { return !tls_.empty(); }
  const TlsFiles& tls() const { return tls_; }
  // Returns whether a peer whose certificate has these URIs may be `role` in the job; empty: any
  // role.
  bool AdmitsRole(const std::vector<std::string>& uris, std::string_view role) const;

  // Checks whether a process with these credentials may listen at `address`, the value of
  // `setting`: where other machines reach it only with certificates, or with a token and
  // `insecure`. InvalidArgument says what to do.
  absl::Status CheckMayListen(const std::string& setting, const std::string& address) const;
  // Checks likewise for a service without encryption, where certificates are of no use: where other
  // machines reach it only with a token and `insecure`.
  absl::Status CheckMayListenInClear(const std::string& setting, const std::string& address) const;
  // Checks likewise whether a scheduler at `address` may be asked.
  absl::Status CheckMayAsk(const std::string& address) const;

 private:
  std::string token_;
  TlsFiles tls_;
  std::string job_;  // the job of the own certificate
  bool insecure_ = false;
};

}  // namespace bdn

#endif  // BANDONEON_COMMON_CLUSTER_CREDENTIALS_H_
