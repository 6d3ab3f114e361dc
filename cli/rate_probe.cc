#include "cli/rate_probe.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <string.h>
#include <sys/random.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <vector>

#include "absl/strings/str_format.h"
#include "common/certs/token_proof.h"

namespace bdn::cli {
namespace {

using SteadyClock = std::chrono::steady_clock;

// The exchange, which either side bounds by itself:
//   listener: kHello, 32 random bytes        peer: 32 random bytes, its proof
//   listener: 'y' or 'n', its proof          peer: kEchoes times kEchoBytes, each sent back
//   peer: chunks, the last marked            listener: a byte; chunks, the last marked
constexpr std::string_view kHello = "bandoneon doctor 1\n";
constexpr size_t kNonceBytes = 32;
constexpr size_t kProofBytes = 32;
constexpr int kEchoes = 1000;
constexpr size_t kEchoBytes = 64;
constexpr size_t kChunkBytes = size_t{1} << 18;
constexpr uint64_t kMostBytes = uint64_t{64} << 30;
constexpr char kMore = 'm';
constexpr char kLast = 'l';
constexpr int kPatienceSeconds = 10;
// Of all of it; who has not shown the token yet has less.
constexpr std::chrono::seconds kStranger{10};
constexpr std::chrono::seconds kLifetime{60};

// One connection, closed with it.
class Line {
 public:
  explicit Line(int fd) : fd_(fd), deadline_(SteadyClock::now() + kStranger) {
    const int on = 1;
    const timeval patience = {kPatienceSeconds, 0};
    setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
    setsockopt(fd_, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience));
  }
  ~Line() { close(fd_); }
  Line(const Line&) = delete;
  Line& operator=(const Line&) = delete;

  void Trust() { deadline_ = SteadyClock::now() + kLifetime; }

  absl::Status Send(std::string_view bytes) {
    while (!bytes.empty()) {
      if (SteadyClock::now() > deadline_) return Late();
      const ssize_t size = send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (size < 0 && errno == EINTR) continue;
      if (size <= 0) return Broken();
      bytes.remove_prefix(static_cast<size_t>(size));
    }
    return absl::OkStatus();
  }
  absl::Status Receive(char* bytes, size_t count) {
    while (count > 0) {
      if (SteadyClock::now() > deadline_) return Late();
      const ssize_t size = recv(fd_, bytes, count, 0);
      if (size < 0 && errno == EINTR) continue;
      if (size == 0) return absl::UnavailableError("the other end closed the connection");
      if (size < 0) return Broken();
      bytes += size;
      count -= static_cast<size_t>(size);
    }
    return absl::OkStatus();
  }
  absl::StatusOr<std::string> Receive(size_t count) {
    std::string bytes(count, '\0');
    if (absl::Status status = Receive(bytes.data(), count); !status.ok()) return status;
    return bytes;
  }

 private:
  static absl::Status Late() { return absl::UnavailableError("the other end takes too long"); }
  static absl::Status Broken() {
    const bool late = errno == EAGAIN || errno == EWOULDBLOCK;
    return absl::UnavailableError(
        late ? absl::StrFormat("the other end stood still for %d s", kPatienceSeconds)
             : absl::StrFormat("the connection broke: %s", strerror(errno)));
  }
  const int fd_;
  SteadyClock::time_point deadline_;
};

absl::StatusOr<std::string> Nonce() {
  std::string nonce(kNonceBytes, '\0');
  if (getrandom(nonce.data(), nonce.size(), 0) != static_cast<ssize_t>(nonce.size())) {
    return absl::UnavailableError("the system has no random bytes");
  }
  return nonce;
}

std::string ProofOf(std::string_view who, const std::string& token, const std::string& listeners,
                    const std::string& peers) {
  return TokenProof(token, std::string(who) + listeners + peers);
}

double Seconds(SteadyClock::time_point since) {
  return std::chrono::duration<double>(SteadyClock::now() - since).count();
}

absl::StatusOr<uint64_t> SendFor(Line* line, std::chrono::milliseconds time) {
  std::string chunk(kChunkBytes, '\0');
  const auto begun = SteadyClock::now();
  for (uint64_t sent = 0;; sent += kChunkBytes) {
    const bool last = SteadyClock::now() - begun >= time || sent + 2 * kChunkBytes > kMostBytes;
    chunk[0] = last ? kLast : kMore;
    if (absl::Status status = line->Send(chunk); !status.ok()) return status;
    if (last) return sent + kChunkBytes;
  }
}

absl::StatusOr<uint64_t> ReceiveAll(Line* line) {
  std::string chunk(kChunkBytes, '\0');
  for (uint64_t received = kChunkBytes; received <= kMostBytes; received += kChunkBytes) {
    if (absl::Status status = line->Receive(chunk.data(), chunk.size()); !status.ok()) {
      return status;
    }
    if (chunk[0] == kLast) return received;
    if (chunk[0] != kMore) return absl::InvalidArgumentError("the other end sent something else");
  }
  return absl::InvalidArgumentError("the other end does not stop sending");
}

double Gbit(uint64_t bytes, double seconds) {
  return static_cast<double>(bytes) * 8 / 1e9 / std::max(seconds, 1e-9);
}

absl::Status WithWhom(const absl::Status& status, const std::string& address) {
  return absl::Status(status.code(),
                      absl::StrFormat("%s: %s", address, std::string(status.message())));
}

absl::Status Admit(Line* line, const std::string& token) {
  const auto own = Nonce();
  if (!own.ok()) return own.status();
  if (absl::Status status = line->Send(std::string(kHello) + *own); !status.ok()) return status;
  const auto answer = line->Receive(kNonceBytes + kProofBytes);
  if (!answer.ok()) return answer.status();
  const std::string peers = answer->substr(0, kNonceBytes);
  if (!SameProof(answer->substr(kNonceBytes), ProofOf("peer", token, *own, peers))) {
    std::string no(1 + kProofBytes, '\0');
    no[0] = 'n';
    (void)line->Send(no);
    return absl::PermissionDeniedError("it has another token");
  }
  line->Trust();
  return line->Send(std::string("y").append(ProofOf("listener", token, *own, peers)));
}

absl::Status BeAdmitted(Line* line, const std::string& token) {
  const auto hello = line->Receive(kHello.size());
  if (!hello.ok()) return hello.status();
  if (*hello != kHello) {
    return absl::InvalidArgumentError("what answers there is no bandoneon doctor --listen");
  }
  const auto listeners = line->Receive(kNonceBytes);
  if (!listeners.ok()) return listeners.status();
  const auto own = Nonce();
  if (!own.ok()) return own.status();
  if (absl::Status status = line->Send(*own + ProofOf("peer", token, *listeners, *own));
      !status.ok()) {
    return status;
  }
  const auto answer = line->Receive(1 + kProofBytes);
  if (!answer.ok()) return answer.status();
  if (answer->front() != 'y' ||
      !SameProof(answer->substr(1), ProofOf("listener", token, *listeners, *own))) {
    return absl::PermissionDeniedError("it has another token: give both the same");
  }
  line->Trust();
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<int> ListenTcp(const HostAndPort& place, int* port) {
  const auto addresses = Resolve(place);
  if (!addresses.ok()) return addresses.status();
  const SocketAddress& address = addresses->front();
  const int fd = socket(address.get()->sa_family, SOCK_STREAM | SOCK_CLOEXEC, IPPROTO_TCP);
  const int on = 1;
  SocketAddress bound;
  bound.size = sizeof(bound.storage);
  if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) != 0 ||
      bind(fd, address.get(), address.size) != 0 || listen(fd, 4) != 0 ||
      getsockname(fd, reinterpret_cast<sockaddr*>(&bound.storage), &bound.size) != 0) {
    const int error = errno;
    if (fd >= 0) close(fd);
    return absl::UnavailableError(
        absl::StrFormat("cannot listen at %s:%s: %s", place.host, place.port, strerror(error)));
  }
  char text[NI_MAXSERV] = "0";
  getnameinfo(bound.get(), bound.size, nullptr, 0, text, sizeof(text), NI_NUMERICSERV);
  *port = static_cast<int>(strtol(text, nullptr, 10));
  return fd;
}

absl::StatusOr<Rates> ServeRates(int listener, const std::string& token,
                                 std::chrono::milliseconds timeout) {
  pollfd polled = {listener, POLLIN, 0};
  if (poll(&polled, 1, static_cast<int>(timeout.count())) <= 0) {
    return absl::DeadlineExceededError("nobody came: bandoneon doctor --peer measures with this");
  }
  SocketAddress peer;
  peer.size = sizeof(peer.storage);
  const int fd =
      accept4(listener, reinterpret_cast<sockaddr*>(&peer.storage), &peer.size, SOCK_CLOEXEC);
  if (fd < 0) return absl::UnavailableError(absl::StrFormat("accept: %s", strerror(errno)));
  Line line(fd);
  Rates rates;
  rates.address = peer.ToString();
  if (absl::Status status = Admit(&line, token); !status.ok()) {
    return WithWhom(status, rates.address);
  }
  for (int i = 0; i < kEchoes; ++i) {
    const auto echo = line.Receive(kEchoBytes);
    const absl::Status status = echo.ok() ? line.Send(*echo) : echo.status();
    if (!status.ok()) return WithWhom(status, rates.address);
  }
  auto begun = SteadyClock::now();
  const auto received = ReceiveAll(&line);
  if (!received.ok()) return WithWhom(received.status(), rates.address);
  rates.received_gbit = Gbit(*received, Seconds(begun));
  absl::Status status = line.Send("k");
  if (!status.ok()) return WithWhom(status, rates.address);
  begun = SteadyClock::now();
  const auto sent = SendFor(&line, std::chrono::seconds(1));
  if (!sent.ok()) return WithWhom(sent.status(), rates.address);
  rates.sent_gbit = Gbit(*sent, Seconds(begun));
  return rates;
}

absl::StatusOr<Rates> MeasureRates(const HostAndPort& place, const std::string& token,
                                   std::chrono::milliseconds timeout,
                                   std::chrono::milliseconds each_way) {
  const auto addresses = Resolve(place);
  if (!addresses.ok()) return addresses.status();
  Rates rates;
  rates.address = place.host + ":" + place.port;
  const TcpAttempt attempt = ConnectTcp(addresses->front(), timeout);
  if (attempt.fd < 0) {
    return absl::UnavailableError(absl::StrFormat("%s: %s", rates.address, attempt.why));
  }
  Line line(attempt.fd);
  if (absl::Status status = BeAdmitted(&line, token); !status.ok()) {
    return WithWhom(status, rates.address);
  }
  std::vector<double> echoes;
  const std::string ping(kEchoBytes, '\0');
  for (int i = 0; i < kEchoes; ++i) {
    const auto begun = SteadyClock::now();
    absl::Status status = line.Send(ping);
    if (status.ok()) status = line.Receive(kEchoBytes).status();
    if (!status.ok()) return WithWhom(status, rates.address);
    echoes.push_back(Seconds(begun) * 1e6);
  }
  std::sort(echoes.begin(), echoes.end());
  rates.median_us = echoes[echoes.size() / 2];
  rates.p99_us = echoes[echoes.size() * 99 / 100];
  auto begun = SteadyClock::now();
  const auto sent = SendFor(&line, each_way);
  if (!sent.ok()) return WithWhom(sent.status(), rates.address);
  // What was sent is what the other end has, once it says so: until then it may lie in this host.
  if (absl::Status status = line.Receive(1).status(); !status.ok()) {
    return WithWhom(status, rates.address);
  }
  rates.sent_gbit = Gbit(*sent, Seconds(begun));
  begun = SteadyClock::now();
  const auto received = ReceiveAll(&line);
  if (!received.ok()) return WithWhom(received.status(), rates.address);
  rates.received_gbit = Gbit(*received, Seconds(begun));
  return rates;
}

}  // namespace bdn::cli
