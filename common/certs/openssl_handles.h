#ifndef BANDONEON_COMMON_CERTS_OPENSSL_HANDLES_H_
#define BANDONEON_COMMON_CERTS_OPENSSL_HANDLES_H_

#include <openssl/bio.h>
#include <openssl/bn.h>
#include <openssl/evp.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include <memory>

namespace bdn {

// A deleter that calls the function by which OpenSSL frees an object, and the handles that own such
// objects.
template <auto kFree>
struct FreeWith {
  template <typename T>
  void operator()(T* object) const {
    kFree(object);
  }
};
using BioHandle = std::unique_ptr<BIO, FreeWith<&BIO_free_all>>;
using NumberHandle = std::unique_ptr<BIGNUM, FreeWith<&BN_free>>;
using KeyHandle = std::unique_ptr<EVP_PKEY, FreeWith<&EVP_PKEY_free>>;
using CertificateHandle = std::unique_ptr<X509, FreeWith<&X509_free>>;
using ExtensionHandle = std::unique_ptr<X509_EXTENSION, FreeWith<&X509_EXTENSION_free>>;
using StoreHandle = std::unique_ptr<X509_STORE, FreeWith<&X509_STORE_free>>;
using StoreContextHandle = std::unique_ptr<X509_STORE_CTX, FreeWith<&X509_STORE_CTX_free>>;
using NamesHandle = std::unique_ptr<GENERAL_NAMES, FreeWith<&GENERAL_NAMES_free>>;

}  // namespace bdn

#endif  // BANDONEON_COMMON_CERTS_OPENSSL_HANDLES_H_
