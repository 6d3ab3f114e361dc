#include "common/certs/certificates.h"

#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "common/base/status.h"
#include "common/certs/openssl_handles.h"
#include "common/certs/small_file.h"

namespace bdn {
namespace {

// The most by which the clocks of the machines may differ.
constexpr absl::Duration kClockSkew = absl::Minutes(5);

// Returns OpenSSL's text about its last failure, and empties its list of failures.
std::string LastOpenSslError() {
  char text[256] = "unknown error";
  if (const unsigned long code = ERR_get_error(); code != 0) {
    ERR_error_string_n(code, text, sizeof(text));
  }
  ERR_clear_error();
  return text;
}
absl::Status OpenSslError(const char* what) { return Internal("%s: %s", what, LastOpenSslError()); }

BioHandle ReaderOf(const std::string& text) {
  return BioHandle(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
}
std::string TextOf(BIO* bio) {
  char* data = nullptr;
  const long size = BIO_get_mem_data(bio, &data);
  return std::string(data, static_cast<size_t>(size));
}

// ---- reading

absl::StatusOr<std::vector<CertificateHandle>> LoadCertificates(const std::string& path) {
  BDN_ASSIGN_OR_RETURN(const std::string text, ReadSmallFile(path));
  const BioHandle reader = ReaderOf(text);
  std::vector<CertificateHandle> found;
  while (X509* certificate = PEM_read_bio_X509(reader.get(), nullptr, nullptr, nullptr)) {
    found.emplace_back(certificate);
  }
  ERR_clear_error();  // forgets the error by which the end of the file is reported
  if (found.empty()) return InvalidArgument("%s holds no certificate in PEM", path);
  return found;
}

absl::StatusOr<KeyHandle> LoadKey(const std::string& path) {
  BDN_ASSIGN_OR_RETURN(const std::string text, ReadSmallFile(path));
  const BioHandle reader = ReaderOf(text);
  // Reading an encrypted key must fail: by default OpenSSL would ask for its password at the
  // terminal.
  const auto no_password = [](char*, int, int, void*) { return -1; };
  KeyHandle key(PEM_read_bio_PrivateKey(reader.get(), nullptr, no_password, nullptr));
  if (key == nullptr) {
    return InvalidArgument("%s holds no private key in PEM that needs no password: %s", path,
                           LastOpenSslError());
  }
  return key;
}

std::string NameText(const X509_NAME* name) {
  const BioHandle out(BIO_new(BIO_s_mem()));
  X509_NAME_print_ex(out.get(), name, 0, XN_FLAG_ONELINE & ~ASN1_STRFLGS_ESC_MSB);
  return TextOf(out.get());
}

absl::Time TimeOf(const ASN1_TIME* time) {
  tm fields = {};
  if (ASN1_TIME_to_tm(time, &fields) != 1) return absl::InfinitePast();
  return absl::FromTM(fields, absl::UTCTimeZone());
}

// Returns the roles among the subject's alternative names; names of other kinds are left out.
std::vector<CertifiedRole> RolesOf(const X509* certificate) {
  std::vector<CertifiedRole> roles;
  const NamesHandle names(static_cast<GENERAL_NAMES*>(
      X509_get_ext_d2i(certificate, NID_subject_alt_name, nullptr, nullptr)));
  for (int i = 0; names != nullptr && i < sk_GENERAL_NAME_num(names.get()); ++i) {
    const GENERAL_NAME* name = sk_GENERAL_NAME_value(names.get(), i);
    if (name->type != GEN_URI) continue;
    const ASN1_STRING* text = name->d.uniformResourceIdentifier;
    const auto role = ParseRoleUri({reinterpret_cast<const char*>(ASN1_STRING_get0_data(text)),
                                    static_cast<size_t>(ASN1_STRING_length(text))});
    if (role.has_value()) roles.push_back(*role);
  }
  return roles;
}

CertificateFacts FactsOf(X509* certificate) {
  CertificateFacts facts;
  facts.subject = NameText(X509_get_subject_name(certificate));
  facts.issuer = NameText(X509_get_issuer_name(certificate));
  facts.roles = RolesOf(certificate);
  facts.is_authority = X509_check_ca(certificate) == 1;
  facts.valid_from = TimeOf(X509_get0_notBefore(certificate));
  facts.valid_until = TimeOf(X509_get0_notAfter(certificate));
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int size = 0;
  X509_digest(certificate, EVP_sha256(), digest, &size);
  for (unsigned int i = 0; i < size; ++i)
    absl::StrAppendFormat(&facts.fingerprint, "%02x", digest[i]);
  return facts;
}

// ---- making

absl::Status AddExtension(X509* certificate, X509* issuer, int kind, const char* value) {
  X509V3_CTX context;
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  const ExtensionHandle extension(X509V3_EXT_conf_nid(nullptr, &context, kind, value));
  if (extension == nullptr || X509_add_ext(certificate, extension.get(), -1) != 1) {
    return OpenSslError("cannot make a certificate");
  }
  return absl::OkStatus();
}

struct Extension {
  int kind;
  std::string value;
};

// The facts in which an authority's certificate and a node's differ.
struct NewCertificate {
  std::string subject;
  std::vector<Extension> extensions;
  Validity validity;
};

// Makes a certificate of `key`, signed by `issuer_key`; without an issuer it is its own issuer.
absl::StatusOr<CertificateHandle> Sign(const NewCertificate& made, EVP_PKEY* key, X509* issuer,
                                       EVP_PKEY* issuer_key) {
  CertificateHandle certificate(X509_new());
  X509* const x509 = certificate.get();
  if (issuer == nullptr) issuer = x509;
  // A random serial number: nothing has to remember the last one, and none repeats.
  const NumberHandle serial(BN_new());
  X509_NAME* name = x509 == nullptr ? nullptr : X509_get_subject_name(x509);
  const auto* subject = reinterpret_cast<const unsigned char*>(made.subject.c_str());
  const time_t from = absl::ToTimeT(made.validity.now - kClockSkew);
  const time_t until = absl::ToTimeT(made.validity.now + made.validity.length);
  if (x509 == nullptr || serial == nullptr || X509_set_version(x509, X509_VERSION_3) != 1 ||
      BN_rand(serial.get(), 127, BN_RAND_TOP_ANY, BN_RAND_BOTTOM_ANY) != 1 ||
      BN_to_ASN1_INTEGER(serial.get(), X509_get_serialNumber(x509)) == nullptr ||
      ASN1_TIME_set(X509_getm_notBefore(x509), from) == nullptr ||
      ASN1_TIME_set(X509_getm_notAfter(x509), until) == nullptr ||
      X509_set_pubkey(x509, key) != 1 ||
      X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_UTF8, subject, -1, -1, 0) != 1 ||
      X509_set_issuer_name(x509, X509_get_subject_name(issuer)) != 1) {
    return OpenSslError("cannot make a certificate");
  }
  for (const Extension& extension : made.extensions) {
    BDN_RETURN_IF_ERROR(AddExtension(x509, issuer, extension.kind, extension.value.c_str()));
  }
  if (X509_sign(x509, issuer_key, EVP_sha256()) == 0) return OpenSslError("cannot sign");
  return certificate;
}

absl::Status WriteCertificate(const std::string& path, X509* certificate) {
  const BioHandle out(BIO_new(BIO_s_mem()));
  if (PEM_write_bio_X509(out.get(), certificate) != 1) return OpenSslError("cannot write");
  return WritePrivateFile(path, TextOf(out.get()));
}

absl::Status WriteKey(const std::string& path, EVP_PKEY* key) {
  // Secure memory, which OpenSSL wipes when it is freed.
  const BioHandle out(BIO_new(BIO_s_secmem()));
  if (PEM_write_bio_PKCS8PrivateKey(out.get(), key, nullptr, nullptr, 0, nullptr, nullptr) != 1) {
    return OpenSslError("cannot write");
  }
  return WritePrivateFile(path, TextOf(out.get()));
}

}  // namespace

absl::Status MakeAuthority(const std::string& directory, const std::string& job,
                           Validity validity) {
  BDN_RETURN_IF_ERROR(CheckCertifiedName("job", job));
  BDN_RETURN_IF_ERROR(MakePrivateDirectory(directory));
  // The key is looked for, too: a new authority would orphan every certificate that the old one
  // signed.
  for (const char* file : {"ca-key.pem", "ca.pem"}) {
    if (access((directory + "/" + file).c_str(), F_OK) != 0) continue;
    return InvalidArgument("%s/%s is there already: remove it to begin anew", directory, file);
  }
  const KeyHandle key(EVP_EC_gen("P-256"));
  if (key == nullptr) return OpenSslError("cannot make a key");
  BDN_ASSIGN_OR_RETURN(const CertificateHandle certificate,
                       Sign({.subject = job,
                             .extensions = {{NID_basic_constraints, "critical,CA:TRUE,pathlen:0"},
                                            {NID_key_usage, "critical,keyCertSign,cRLSign"},
                                            {NID_subject_key_identifier, "hash"}},
                             .validity = validity},
                            key.get(), nullptr, key.get()));
  BDN_RETURN_IF_ERROR(WriteKey(directory + "/ca-key.pem", key.get()));
  return WriteCertificate(directory + "/ca.pem", certificate.get());
}

absl::StatusOr<TlsFiles> IssueCertificate(const std::string& directory, const std::string& name,
                                          const std::vector<std::string>& roles,
                                          Validity validity) {
  BDN_RETURN_IF_ERROR(CheckCertifiedName("name", name));
  if (roles.empty()) return InvalidArgument("no role is given");
  BDN_ASSIGN_OR_RETURN(const auto authorities, LoadCertificates(directory + "/ca.pem"));
  BDN_ASSIGN_OR_RETURN(const KeyHandle authority_key, LoadKey(directory + "/ca-key.pem"));
  X509* const authority = authorities.front().get();
  if (X509_check_private_key(authority, authority_key.get()) != 1) {
    ERR_clear_error();
    return InvalidArgument("%s/ca-key.pem is not the key of %s/ca.pem", directory, directory);
  }
  // The job's name is the authority's common name, so a certificate cannot name another job.
  char job[256] = "";
  X509_NAME_get_text_by_NID(X509_get_subject_name(authority), NID_commonName, job, sizeof(job));
  std::string uris;
  for (const std::string& role : roles) {
    BDN_RETURN_IF_ERROR(CheckCertifiedRole({job, role}));
    uris += (uris.empty() ? "URI:" : ",URI:") + ToUri({job, role});
  }
  // A certificate must not outlive its authority: it would be refused from then on.
  validity.length = std::min(validity.length, TimeOf(X509_get0_notAfter(authority)) - validity.now);
  if (validity.length <= absl::ZeroDuration()) {
    return InvalidArgument("%s/ca.pem has expired: make another authority", directory);
  }
  const KeyHandle key(EVP_EC_gen("P-256"));
  if (key == nullptr) return OpenSslError("cannot make a key");
  BDN_ASSIGN_OR_RETURN(const CertificateHandle certificate,
                       Sign({.subject = name,
                             .extensions = {{NID_basic_constraints, "critical,CA:FALSE"},
                                            {NID_key_usage, "critical,digitalSignature"},
                                            {NID_ext_key_usage, "serverAuth,clientAuth"},
                                            {NID_subject_key_identifier, "hash"},
                                            {NID_authority_key_identifier, "keyid"},
                                            {NID_subject_alt_name, uris}},
                             .validity = validity},
                            key.get(), authority, authority_key.get()));
  const std::string folder = directory + "/" + name;
  const TlsFiles files{folder + "/ca.pem", folder + "/cert.pem", folder + "/key.pem"};
  BDN_RETURN_IF_ERROR(MakePrivateDirectory(folder));
  BDN_ASSIGN_OR_RETURN(const std::string trusted, ReadSmallFile(directory + "/ca.pem"));
  BDN_RETURN_IF_ERROR(WritePrivateFile(files.authority, trusted));
  // The certificate comes last: where it is new, the key beside it is, too.
  BDN_RETURN_IF_ERROR(WriteKey(files.key, key.get()));
  BDN_RETURN_IF_ERROR(WriteCertificate(files.certificate, certificate.get()));
  return files;
}

absl::StatusOr<CertificateFacts> ReadCertificate(const std::string& path) {
  BDN_ASSIGN_OR_RETURN(const auto certificates, LoadCertificates(path));
  return FactsOf(certificates.front().get());
}

absl::StatusOr<CertificateFacts> CheckTlsFiles(const TlsFiles& files, absl::Time now) {
  BDN_ASSIGN_OR_RETURN(const auto authorities, LoadCertificates(files.authority));
  BDN_ASSIGN_OR_RETURN(const auto own, LoadCertificates(files.certificate));
  BDN_ASSIGN_OR_RETURN(const KeyHandle key, LoadKey(files.key));
  X509* const certificate = own.front().get();
  if (X509_check_private_key(certificate, key.get()) != 1) {
    ERR_clear_error();
    return InvalidArgument("%s is not the key of %s", files.key, files.certificate);
  }
  const StoreHandle store(X509_STORE_new());
  // Each of several authorities is trusted, so that one may take the place of another.
  for (const CertificateHandle& authority : authorities) {
    X509_STORE_add_cert(store.get(), authority.get());
  }
  const StoreContextHandle context(X509_STORE_CTX_new());
  if (X509_STORE_CTX_init(context.get(), store.get(), certificate, nullptr) != 1) {
    return OpenSslError("cannot check a certificate");
  }
  X509_STORE_CTX_set_time(context.get(), 0, absl::ToTimeT(now));
  if (X509_verify_cert(context.get()) != 1) {
    const int error = X509_STORE_CTX_get_error(context.get());
    ERR_clear_error();
    return InvalidArgument("%s cannot be used with %s: %s", files.certificate, files.authority,
                           X509_verify_cert_error_string(error));
  }
  return FactsOf(certificate);
}

}  // namespace bdn
