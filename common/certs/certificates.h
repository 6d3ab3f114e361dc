#ifndef BANDONEON_COMMON_CERTS_CERTIFICATES_H_
#define BANDONEON_COMMON_CERTS_CERTIFICATES_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/certs/certified_role.h"

// A job's own certificate authority and what it signs: X.509, ECDSA P-256, PEM files. The time of
// day is an argument, `now`. All functions are thread-safe; errors are InvalidArgument and name the
// file.

namespace bdn {

// Where the files of one process lie. All empty: no TLS.
struct TlsFiles {
  std::string authority;    // certificates of the authorities that it trusts
  std::string certificate;  // its own
  std::string key;          // of its own certificate

  bool empty() const { return authority.empty() && certificate.empty() && key.empty(); }
};

// What a certificate says.
struct CertificateFacts {
  std::string subject;
  std::string issuer;
  std::vector<CertifiedRole> roles;
  bool is_authority = false;
  absl::Time valid_from;
  absl::Time valid_until;
  std::string fingerprint;  // SHA-256, hexadecimal
};

// How long what is made is valid; from some minutes before `now`, for clocks that differ.
struct Validity {
  absl::Time now;
  absl::Duration length;
};

// Makes DIRECTORY (0700) with ca.pem and ca-key.pem (0600). An authority that is there stays, and
// is an error.
absl::Status MakeAuthority(const std::string& directory, const std::string& job, Validity validity);

// Makes DIRECTORY/NAME with ca.pem, cert.pem and key.pem, signed by the authority in DIRECTORY: all
// that one process needs. What is there of that name is replaced, file by file, each at once.
// `name` is one word of a path.
absl::StatusOr<TlsFiles> IssueCertificate(const std::string& directory, const std::string& name,
                                          const std::vector<std::string>& roles, Validity validity);

// Of the first certificate in the file.
absl::StatusOr<CertificateFacts> ReadCertificate(const std::string& path);

// Whether the files can be used now: they are there, the key is the certificate's, and the
// certificate is valid and signed by one of the authorities. What the certificate says.
absl::StatusOr<CertificateFacts> CheckTlsFiles(const TlsFiles& files, absl::Time now);

}  // namespace bdn

#endif  // BANDONEON_COMMON_CERTS_CERTIFICATES_H_
