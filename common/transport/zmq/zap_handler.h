#ifndef BANDONEON_COMMON_TRANSPORT_ZMQ_ZAP_HANDLER_H_
#define BANDONEON_COMMON_TRANSPORT_ZMQ_ZAP_HANDLER_H_

#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "common/transport/transport.h"

namespace bdn {

// The rule by which connections are admitted. Thread-safe: a request that comes after Set is
// decided by it.
class Admissions {
 public:
  // A question of ZeroMQ about one connection.
  struct Request {
    LinkSecurity security = LinkSecurity::kEncrypted;  // the listener's
    std::string mechanism;                             // "CURVE", "PLAIN" or "NULL"
    std::vector<std::string> credentials;
  };

  void Set(const Admission& admission);
  // Returns whether Set was called: before that nobody is admitted or refused.
  bool is_known() const;
  // Returns the public key of a connector that is admitted; none for one that is not.
  PublicKey Decide(const Request& request) const;
  bool Admits(const PublicKey& key) const;

 private:
  mutable Mutex mu_;
  bool is_known_ ABSL_GUARDED_BY(mu_) = false;
  absl::flat_hash_set<PublicKey> keys_ ABSL_GUARDED_BY(mu_);
  std::string secret_ ABSL_GUARDED_BY(mu_);  // in Z85, as connectors show it
};

// The answering end of ZeroMQ's authentication protocol (RFC 27). All listeners of a context ask it
// about each connector that has shown that it holds a CURVE key, or has said a password, before
// they read a frame of it. Not thread-safe; it may be used by another thread than the one that made
// it.
class ZapHandler {
 public:
  // Makes the one handler of a context.
  static absl::StatusOr<ZapHandler> Bind(void* context);

  void* socket() const { return socket_; }
  // Answers all questions that have come, or keeps them until it is known which connectors are
  // admitted. Returns how many were refused; the last of them came from `address`.
  int AnswerAll(const Admissions& admissions, std::string* address);
  void Close();

 private:
  explicit ZapHandler(void* socket) : socket_(socket) {}
  std::optional<std::vector<std::string>> ReadMessage();
  bool Answer(const std::vector<std::string>& message, const Admissions& admissions);

  void* socket_;
  std::deque<std::vector<std::string>> waiting_;  // questions not yet answered
};

// Returns the domain that marks the questions of a listener, so that no connector comes in by a
// weaker way.
const char* ZapDomainOf(LinkSecurity security);

}  // namespace bdn

#endif  // BANDONEON_COMMON_TRANSPORT_ZMQ_ZAP_HANDLER_H_
