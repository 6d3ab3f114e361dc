#ifndef BANDONEON_COMMON_CERTS_CERTIFICATES_H_
#define BANDONEON_COMMON_CERTS_CERTIFICATES_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/certs/certified_role.h"

// A job's own certificate authority and the certificates that it signs: X.509, ECDSA P-256, PEM
// files. The time of day is an argument, `now`. All functions are thread-safe; errors are
// InvalidArgument and name the file.

namespace bdn {

// The paths of the TLS files of one process. All are empty where TLS is not used.
struct TlsFiles {
  std::string authority;    // certificates of the authorities that it trusts
  std::string certificate;  // its own certificate
  std::string key;          // the private key of its own certificate

  bool empty() const { return authority.empty() && certificate.empty() && key.empty(); }
};

// The facts that a certificate states.
struct CertificateFacts {
  std::string subject;
  std::string issuer;
  std::vector<CertifiedRole> roles;
  bool is_authority = false;
  absl::Time valid_from;
  absl::Time valid_until;
  std::string fingerprint;  // SHA-256, hexadecimal
};

// The time for which a new certificate is valid. It begins some minutes before `now`, because
// clocks differ.
struct Validity {
  absl::Time now;
  absl::Duration length;
};

// Makes DIRECTORY (0700) with ca.pem and ca-key.pem (0600). An authority that exists already is
// left as it is, and is an error.
absl::Status MakeAuthority(const std::string& directory, const std::string& job, Validity validity);

// Makes DIRECTORY/NAME with ca.pem, cert.pem and key.pem, signed by the authority in DIRECTORY: all
// that one process needs. Existing files of that name are replaced one by one, each atomically.
// `name` is one word of a path.
absl::StatusOr<TlsFiles> IssueCertificate(const std::string& directory, const std::string& name,
                                          const std::vector<std::string>& roles, Validity validity);

// Returns the facts of the first certificate in the file.
absl::StatusOr<CertificateFacts> ReadCertificate(const std::string& path);

// Checks whether the files can be used now: they exist, the key is the certificate's, and the
// certificate is valid and signed by one of the authorities. Returns the facts of the certificate.
absl::StatusOr<CertificateFacts> CheckTlsFiles(const TlsFiles& files, absl::Time now);

}  // namespace bdn

#endif  // BANDONEON_COMMON_CERTS_CERTIFICATES_H_
