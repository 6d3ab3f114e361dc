#include "common/transport/zmq/zap_handler.h"

#include <zmq.h>

#include <cerrno>
#include <utility>

#include "common/base/secret.h"
#include "common/base/status.h"
#include "common/transport/zmq/zmq_keys.h"

namespace bdn {
namespace {

// The parts of a request, by RFC 27; the credentials follow.
enum Part : size_t { kVersion, kRequestId, kDomain, kAddress, kRoutingId, kMechanism, kFixedParts };
constexpr size_t kMaxParts = kFixedParts + 2;

LinkSecurity SecurityOf(const std::string& domain) {
  return domain == ZapDomainOf(LinkSecurity::kAuthenticated) ? LinkSecurity::kAuthenticated
                                                             : LinkSecurity::kEncrypted;
}

}  // namespace

const char* ZapDomainOf(LinkSecurity security) { return LinkSecurityName(security); }

void Admissions::Set(Admission admission) {
  is_known_ = true;
  keys_.clear();
  for (const PublicKey& key : admission.keys) {
    if (!key.empty()) keys_.insert(key);
  }
  secret_ = ToZ85(admission.secret);
}

Admissions::Answer Admissions::Decide(const Request& request, PublicKey* key) const {
  if (!is_known_) return Answer::kNotYet;
  const auto& shown = request.credentials;
  if (request.security == LinkSecurity::kAuthenticated) {
    if (request.mechanism != "PLAIN" || shown.size() != 2) return Answer::kDenied;
    // A job without a secret admits nobody by it.
    if (secret_.empty() || !IsSameSecret(shown[1], secret_)) return Answer::kDenied;
    *key = PublicKeyFromZ85(shown[0]);
  } else {
    if (request.mechanism != "CURVE" || shown.size() != 1) return Answer::kDenied;
    *key = PublicKey::FromBytes(shown[0]).value_or(PublicKey());
  }
  return Admits(*key) ? Answer::kAdmitted : Answer::kDenied;
}

absl::StatusOr<ZapHandler> ZapHandler::Bind(void* context) {
  void* const socket = zmq_socket(context, ZMQ_REP);
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

std::optional<std::vector<std::string>> ZapHandler::ReadRequest() {
  std::vector<std::string> parts;
  for (bool more = true; more;) {
    zmq_msg_t message;
    zmq_msg_init(&message);
    int got;
    do {
      got = zmq_msg_recv(&message, socket_, ZMQ_DONTWAIT);
    } while (got < 0 && errno == EINTR);
    if (got >= 0 && parts.size() <= kMaxParts) {
      parts.emplace_back(static_cast<const char*>(zmq_msg_data(&message)), zmq_msg_size(&message));
    }
    more = got >= 0 && zmq_msg_more(&message) != 0;
    zmq_msg_close(&message);
    if (got < 0) return std::nullopt;
  }
  return parts;
}

int ZapHandler::AnswerAll(const Admissions& admissions, std::string* address) {
  int denied = 0;
  while (auto parts = ReadRequest()) {
    // libzmq itself asks: a request of another form is none of its.
    parts->resize(std::max<size_t>(parts->size(), kFixedParts));
    Admissions::Request request{SecurityOf((*parts)[kDomain]), (*parts)[kMechanism], {}};
    request.credentials.assign(parts->begin() + kFixedParts, parts->end());
    PublicKey key;
    const Admissions::Answer answer = admissions.Decide(request, &key);
    if (answer == Admissions::Answer::kDenied) {
      ++denied;
      *address = (*parts)[kAddress];
    }
    // 300 ends the connection without a word, and its peer tries again; 400 says no.
    const char* code = answer == Admissions::Answer::kAdmitted ? "200"
                       : answer == Admissions::Answer::kNotYet ? "300"
                                                               : "400";
    const std::string user =
        answer == Admissions::Answer::kAdmitted ? ToZ85(key.view()) : std::string();
    const std::string reply[] = {"1.0", (*parts)[kRequestId], code, "", user, ""};
    for (size_t i = 0; i < std::size(reply); ++i) {
      const int more = i + 1 < std::size(reply) ? ZMQ_SNDMORE : 0;
      zmq_send(socket_, reply[i].data(), reply[i].size(), ZMQ_DONTWAIT | more);
    }
  }
  return denied;
}

}  // namespace bdn
