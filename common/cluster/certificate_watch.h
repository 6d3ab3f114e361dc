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

// A watch of the TLS files of a process, which keeps their last usable content. Files that replace
// them are taken once all three have been checked together. gRPC, which takes whatever it finds, is
// given paths to this content, in RAM, in place of the files. Thread-safe.
class CertificateWatch {
 public:
  // Watches `files`, with `interval` between two looks at them.
  explicit CertificateWatch(TlsFiles files, absl::Duration interval = absl::Seconds(2));
  ~CertificateWatch();
  CertificateWatch(const CertificateWatch&) = delete;
  CertificateWatch& operator=(const CertificateWatch&) = delete;

  // Returns paths that this process may open while the watch lives.
  TlsFiles shown() const;
  // Returns how often files that had changed could not be used.
  int refusals() const;

 private:
  // The content of the three files.
  struct Texts {
    std::string authority;
    std::string certificate;
    std::string key;
    friend bool operator==(const Texts&, const Texts&) = default;
  };
  void Run();
  void Look();
  Texts ReadFiles() const;
  // Replaces the content shown, each file atomically.
  void Show(const Texts& texts);

  const TlsFiles files_;
  const absl::Duration interval_;
  const SteadyClock clock_;
  Texts seen_;     // the texts that were taken or refused last
  Texts changed_;  // the texts found at the last look
  FileDescriptor authority_;
  FileDescriptor pair_;  // the certificate and its key in one file, because they change together
  mutable Mutex mu_;
  CondVar closed_changed_;
  bool is_closed_ ABSL_GUARDED_BY(mu_) = false;
  int refusals_ ABSL_GUARDED_BY(mu_) = 0;
  std::thread thread_;
};

}  // namespace bdn

#endif  // BANDONEON_COMMON_CLUSTER_CERTIFICATE_WATCH_H_
