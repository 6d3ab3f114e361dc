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

// Who may connect, decided. Thread-safe: who is asked about after Set is judged by it.
class Admissions {
 public:
  struct Request {
    LinkSecurity security = LinkSecurity::kEncrypted;  // what the listener asks for
    std::string mechanism;                             // "CURVE", "PLAIN" or "NULL"
    std::vector<std::string> credentials;
  };

  void Set(const Admission& admission);
  // Whether anybody has said yet who may connect.
  bool is_known() const;
  // The key of who is admitted; none for who is not.
  PublicKey Decide(const Request& request) const;
  bool Admits(const PublicKey& key) const;

 private:
  mutable Mutex mu_;
  bool is_known_ ABSL_GUARDED_BY(mu_) = false;
  absl::flat_hash_set<PublicKey> keys_ ABSL_GUARDED_BY(mu_);
  std::string secret_ ABSL_GUARDED_BY(mu_);  // in Z85, as it is shown
};

// The end of ZeroMQ's authentication protocol (RFC 27) that answers: all listeners of a context ask
// it about whoever has shown that he holds a key, or says a password, before they read one of his
// frames. Not thread-safe, but for the constructor's thread and the others'.
class ZapHandler {
 public:
  static absl::StatusOr<ZapHandler> Bind(void* context);

  void* socket() const { return socket_; }
  // Answers all that have come, or keeps them until it is known who may connect. Returns how many
  // were denied, of which the last came from `address`.
  int AnswerAll(const Admissions& admissions, std::string* address);
  void Close();

 private:
  explicit ZapHandler(void* socket) : socket_(socket) {}
  std::optional<std::vector<std::string>> ReadMessage();
  bool Answer(const std::vector<std::string>& message, const Admissions& admissions);

  void* socket_;
  std::deque<std::vector<std::string>> waiting_;  // of messages
};

// What a listener's requests are marked with, so that nobody comes by a weaker way.
const char* ZapDomainOf(LinkSecurity security);

}  // namespace bdn

#endif  // BANDONEON_COMMON_TRANSPORT_ZMQ_ZAP_HANDLER_H_
