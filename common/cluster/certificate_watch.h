#ifndef BANDONEON_COMMON_CLUSTER_CERTIFICATE_WATCH_H_
#define BANDONEON_COMMON_CLUSTER_CERTIFICATE_WATCH_H_

#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/file_descriptor.h"
#include "common/base/mutex.h"
#include "common/certs/certificates.h"

namespace bdn {

// A process's files of TLS as they were when they could last be used: what replaces them is taken once it has
// been checked, all three together. gRPC, which takes whatever is there, is shown these in place of the files.
// They lie in memory. Thread-safe.
class CertificateWatch {
 public:
  // `interval`: between two looks at the files.
  explicit CertificateWatch(TlsFiles files, absl::Duration interval = absl::Seconds(2));
  ~CertificateWatch();
  CertificateWatch(const CertificateWatch&) = delete;
  CertificateWatch& operator=(const CertificateWatch&) = delete;

  // Paths for this process, while this lives.
  TlsFiles shown() const;
  // How often files that had changed could not be used.
  int refusals() const;

 private:
  struct Texts {
    std::string authority;
    std::string certificate;
    std::string key;
    friend bool operator==(const Texts&, const Texts&) = default;
  };
  void Run();
  void Look();
  Texts ReadFiles() const;
  // Each at once.
  void Show(const Texts& texts);

  const TlsFiles files_;
  const absl::Duration interval_;
  const SteadyClock clock_;
  Texts seen_;     // the last that were taken or refused
  Texts changed_;  // what was there at the last look
  FileDescriptor authority_;
  FileDescriptor pair_;  // the certificate and its key, which change together
  mutable Mutex mu_;
  CondVar closed_changed_;
  bool is_closed_ ABSL_GUARDED_BY(mu_) = false;
  int refusals_ ABSL_GUARDED_BY(mu_) = 0;
  std::thread thread_;
};

}  // namespace bdn

#endif  // BANDONEON_COMMON_CLUSTER_CERTIFICATE_WATCH_H_
