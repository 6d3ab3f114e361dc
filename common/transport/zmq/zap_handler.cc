#include "common/transport/zmq/zap_handler.h"

#include <zmq.h>

#include <cerrno>
#include <utility>

#include "common/base/secret.h"
#include "common/base/status.h"
#include "common/transport/zmq/zmq_keys.h"

namespace bdn {
namespace {

// The parts of a question: the asking socket's name and an empty part, then the request by RFC 27,
// which the credentials follow.
enum Part : size_t {
  kAsker,
  kDelimiter,
  kVersion,
  kRequestId,
  kDomain,
  kAddress,
  kRoutingId,
  kMechanism,
  kFixedParts
};
constexpr size_t kMaxParts = kFixedParts + 2;
constexpr size_t kMaxWaiting = 8192;

LinkSecurity SecurityOf(const std::string& domain) {
  return domain == ZapDomainOf(LinkSecurity::kAuthenticated) ? LinkSecurity::kAuthenticated
                                                             : LinkSecurity::kEncrypted;
}

}  // namespace

const char* ZapDomainOf(LinkSecurity security) { return LinkSecurityName(security); }

void Admissions::Set(const Admission& admission) {
  MutexLock lock(&mu_);
  is_known_ = true;
  keys_.clear();
  for (const PublicKey& key : admission.keys) {
    if (!key.empty()) keys_.insert(key);
  }
  secret_ = ToZ85(admission.secret);
}

bool Admissions::is_known() const {
  MutexLock lock(&mu_);
  return is_known_;
}

bool Admissions::Admits(const PublicKey& key) const {
  MutexLock lock(&mu_);
  return keys_.contains(key);
}

PublicKey Admissions::Decide(const Request& request) const {
  const auto& shown = request.credentials;
  PublicKey key;
  MutexLock lock(&mu_);
  if (request.security == LinkSecurity::kAuthenticated) {
    if (request.mechanism != "PLAIN" || shown.size() != 2) return {};
    // A job without a secret admits nobody by an empty one.
    if (secret_.empty() || !IsSameSecret(shown[1], secret_)) return {};
    key = PublicKeyFromZ85(shown[0]);
  } else {
    if (request.mechanism != "CURVE" || shown.size() != 1) return {};
    key = PublicKey::FromBytes(shown[0]).value_or(PublicKey());
  }
  return keys_.contains(key) ? key : PublicKey();
}

absl::StatusOr<ZapHandler> ZapHandler::Bind(void* context) {
  void* const socket = zmq_socket(context, ZMQ_ROUTER);
  if (socket == nullptr) return ResourceExhausted("zmq_socket: %s", zmq_strerror(errno));
  const int no_linger = 0;
  zmq_setsockopt(socket, ZMQ_LINGER, &no_linger, sizeof(no_linger));
  if (zmq_bind(socket, "inproc://zeromq.zap.01") != 0) {
    const int error = errno;
    zmq_close(socket);
    return Internal("the authentication of connections: %s", zmq_strerror(error));
  }
  return ZapHandler(socket);
}

void ZapHandler::Close() { zmq_close(socket_); }

std::optional<std::vector<std::string>> ZapHandler::ReadMessage() {
  std::vector<std::string> parts;
  for (bool more = true; more;) {
    zmq_msg_t message;
    zmq_msg_init(&message);
    int got;
    do {
      got = zmq_msg_recv(&message, socket_, ZMQ_DONTWAIT);
    } while (got < 0 && errno == EINTR);
    // All parts are read, but no more kept than a question has.
    if (got >= 0 && parts.size() <= kMaxParts) {
      parts.emplace_back(static_cast<const char*>(zmq_msg_data(&message)), zmq_msg_size(&message));
    }
    more = got >= 0 && zmq_msg_more(&message) != 0;
    zmq_msg_close(&message);
    if (got < 0) return std::nullopt;
  }
  // Only libzmq asks, so a message of another form does not occur. If it did, empty parts would
  // refuse it.
  parts.resize(std::max<size_t>(parts.size(), kFixedParts));
  return parts;
}

bool ZapHandler::Answer(const std::vector<std::string>& message, const Admissions& admissions) {
  const PublicKey key = admissions.Decide({SecurityOf(message[kDomain]),
                                           message[kMechanism],
                                           {message.begin() + kFixedParts, message.end()}});
  const std::string reply[] = {message[kAsker],
                               "",
                               "1.0",
                               message[kRequestId],
                               key.empty() ? "400" : "200",
                               "",
                               key.empty() ? "" : ToZ85(key.view()),
                               ""};
  // A connector that has gone meanwhile gets no answer: the send fails, which changes nothing.
  for (size_t i = 0; i < std::size(reply); ++i) {
    const int more = i + 1 < std::size(reply) ? ZMQ_SNDMORE : 0;
    zmq_send(socket_, reply[i].data(), reply[i].size(), ZMQ_DONTWAIT | more);
  }
  return !key.empty();
}

int ZapHandler::AnswerAll(const Admissions& admissions, std::string* address) {
  while (auto message = ReadMessage()) {
    waiting_.push_back(*std::move(message));
    // The connections of the oldest are gone long since, as a handshake does not take for ever.
    if (waiting_.size() > kMaxWaiting) waiting_.pop_front();
  }
  if (!admissions.is_known()) return 0;
  int denied = 0;
  for (; !waiting_.empty(); waiting_.pop_front()) {
    if (Answer(waiting_.front(), admissions)) continue;
    ++denied;
    *address = waiting_.front()[kAddress];
  }
  return denied;
}

}  // namespace bdn
