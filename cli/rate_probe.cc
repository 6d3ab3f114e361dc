#include "cli/rate_probe.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "cli/rate_hello.h"
#include "common/certs/token_proof.h"

namespace bdn::cli {
namespace {

using SteadyClock = std::chrono::steady_clock;

// The exchange, once both ends have shown the token and it is the peer's turn (rate_hello.h):
//   peer: kEchoes times kEchoBytes, each sent back by the listener
//   peer: chunks, the last marked            listener: a byte; chunks, the last marked
constexpr int kEchoes = 1000;
constexpr size_t kEchoBytes = 64;
constexpr size_t kChunkBytes = size_t{1} << 18;
// An end that sends more than this without a last chunk is given up.
constexpr uint64_t kMostBytes = uint64_t{64} << 30;
constexpr char kMore = 'm';
constexpr char kLast = 'l';
constexpr int kPatienceSeconds = 10;
// The time for a whole measurement, and the shorter time for an end that has not shown the token
// yet.
constexpr std::chrono::seconds kStranger{10};
constexpr std::chrono::seconds kLifetime{60};
// The measurement of a peer takes no longer, so a waiting one moves up within this time.
constexpr std::chrono::seconds kTurn{70};
constexpr std::chrono::milliseconds kTendInterval{200};

// A connection, which is closed with it. It calls `tend` every 200 ms, as long as it sends or
// receives. Not thread-safe.
class Line {
 public:
  explicit Line(int fd, std::function<void()> tend = {})
      : fd_(fd), tend_(std::move(tend)), deadline_(SteadyClock::now() + kStranger) {
    const int on = 1;
    // Calls return this often, to look at the time and to tend the others.
    const timeval interval = {0, std::chrono::microseconds(kTendInterval).count()};
    setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &interval, sizeof(interval));
    setsockopt(fd_, SOL_SOCKET, SO_SNDTIMEO, &interval, sizeof(interval));
  }
  ~Line() { close(fd_); }
  Line(const Line&) = delete;
  Line& operator=(const Line&) = delete;

  // Sets the time that is left, from now on.
  void GiveTime(std::chrono::seconds time) { deadline_ = SteadyClock::now() + time; }

  absl::Status Send(std::string_view bytes) {
    moved_ = SteadyClock::now();
    while (!bytes.empty()) {
      if (absl::Status status = GoOn(); !status.ok()) return status;
      const ssize_t size = send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (size < 0 && IsPause()) continue;
      if (size <= 0) return Broken();
      bytes.remove_prefix(Moved(size));
    }
    return absl::OkStatus();
  }
  absl::Status Receive(char* bytes, size_t count) {
    moved_ = SteadyClock::now();
    while (count > 0) {
      if (absl::Status status = GoOn(); !status.ok()) return status;
      const ssize_t size = recv(fd_, bytes, count, 0);
      if (size < 0 && IsPause()) continue;
      if (size == 0) return absl::UnavailableError("the other end closed the connection");
      if (size < 0) return Broken();
      bytes += size;
      count -= Moved(size);
    }
    return absl::OkStatus();
  }
  absl::StatusOr<std::string> Receive(size_t count) {
    std::string bytes(count, '\0');
    if (absl::Status status = Receive(bytes.data(), count); !status.ok()) return status;
    return bytes;
  }

 private:
  absl::Status GoOn() {
    const auto now = SteadyClock::now();
    if (now > deadline_) return absl::UnavailableError("the other end takes too long");
    if (now > moved_ + std::chrono::seconds(kPatienceSeconds)) {
      return absl::UnavailableError(
          absl::StrFormat("the other end stood still for %d s", kPatienceSeconds));
    }
    if (tend_ && now >= tended_ + kTendInterval) {
      tend_();
      tended_ = now;
    }
    return absl::OkStatus();
  }
  size_t Moved(ssize_t size) {
    moved_ = SteadyClock::now();
    return static_cast<size_t>(size);
  }
  static bool IsPause() { return errno == EINTR || errno == EAGAIN || errno == EWOULDBLOCK; }
  static absl::Status Broken() {
    return absl::UnavailableError(absl::StrFormat("the connection broke: %s", strerror(errno)));
  }
  const int fd_;
  const std::function<void()> tend_;
  SteadyClock::time_point deadline_;
  SteadyClock::time_point moved_{};
  SteadyClock::time_point tended_{};
};

double Seconds(SteadyClock::time_point since) {
  return std::chrono::duration<double>(SteadyClock::now() - since).count();
}

absl::StatusOr<uint64_t> SendFor(Line* line, std::chrono::milliseconds time) {
  std::string chunk(kChunkBytes, '\0');
  const auto begun = SteadyClock::now();
  for (uint64_t sent = 0;; sent += kChunkBytes) {
    // This chunk is the last, too, if one more would exceed kMostBytes.
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

absl::Status BeAdmitted(Line* line, const std::string& token) {
  const auto hello = line->Receive(kHello.size());
  if (!hello.ok()) return hello.status();
  if (*hello != kHello) {
    return absl::InvalidArgumentError(
        "what answers there is no bandoneon doctor --listen of this version");
  }
  const auto listeners = line->Receive(kNonceBytes);
  if (!listeners.ok()) return listeners.status();
  const auto own = Nonce();
  if (!own.ok()) return own.status();
  if (absl::Status status = line->Send(*own + RateProof("peer", token, *listeners, *own));
      !status.ok()) {
    return status;
  }
  const auto answer = line->Receive(1 + kProofBytes);
  if (!answer.ok()) return answer.status();
  if (answer->front() != 'y' ||
      !SameProof(answer->substr(1), RateProof("listener", token, *listeners, *own))) {
    return absl::PermissionDeniedError("it has another token: give both the same");
  }
  line->GiveTime(kTurn);
  return absl::OkStatus();
}

absl::Status AwaitTurn(Line* line, const std::function<void(size_t before)>& on_waiting) {
  for (size_t last = std::numeric_limits<size_t>::max();;) {
    const auto bytes = line->Receive(kNoteBytes);
    if (!bytes.ok()) return bytes.status();
    const auto read = ParseNote(*bytes);
    if (!read.ok()) return read.status();
    switch (read->note) {
      case Note::kGo:
        line->GiveTime(kLifetime);
        return absl::OkStatus();
      case Note::kFull:
        return absl::ResourceExhaustedError(
            absl::StrFormat("%d wait there already: come again later", read->number));
      case Note::kEnded:
        return absl::UnavailableError(
            "it has ended, with as many as its --peers says: start it with more");
      case Note::kWait:
        break;
    }
    // A queue never grows before a peer; an end that says so would keep it waiting for ever.
    if (read->number == 0 || read->number > last) {
      return absl::InvalidArgumentError("the other end sent something else");
    }
    // A reminder that the listener lives, which gives no more time.
    if (read->number == last) continue;
    last = read->number;
    line->GiveTime(kTurn);
    on_waiting(last);
  }
}

}  // namespace

absl::StatusOr<int> ListenTcp(const HostAndPort& place, int* port) {
  const auto addresses = Resolve(place);
  if (!addresses.ok()) return addresses.status();
  const SocketAddress& address = addresses->front();
  const int fd =
      socket(address.get()->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, IPPROTO_TCP);
  const int on = 1;
  SocketAddress bound;
  bound.size = sizeof(bound.storage);
  if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) != 0 ||
      bind(fd, address.get(), address.size) != 0 || listen(fd, SOMAXCONN) != 0 ||
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

absl::StatusOr<Rates> ServeRates(PeerQueue* peers, std::chrono::milliseconds timeout) {
  const auto peer = peers->Next(timeout);
  if (!peer.ok()) return peer.status();
  Line line(peer->fd, [peers] { peers->Tend(); });
  line.GiveTime(kLifetime);
  Rates rates;
  rates.address = peer->address;
  absl::Status status = line.Send(NoteBytes(Note::kGo));
  if (!status.ok()) return WithWhom(status, rates.address);
  for (int i = 0; i < kEchoes; ++i) {
    const auto echo = line.Receive(kEchoBytes);
    status = echo.ok() ? line.Send(*echo) : echo.status();
    if (!status.ok()) return WithWhom(status, rates.address);
  }
  auto begun = SteadyClock::now();
  const auto received = ReceiveAll(&line);
  if (!received.ok()) return WithWhom(received.status(), rates.address);
  rates.received_gbit = Gbit(*received, Seconds(begun));
  // The peer stops its clock at this byte.
  status = line.Send("k");
  if (!status.ok()) return WithWhom(status, rates.address);
  begun = SteadyClock::now();
  const auto sent = SendFor(&line, std::chrono::seconds(1));
  if (!sent.ok()) return WithWhom(sent.status(), rates.address);
  rates.sent_gbit = Gbit(*sent, Seconds(begun));
  return rates;
}

absl::StatusOr<Rates> MeasureRates(const HostAndPort& place, const std::string& token,
                                   std::chrono::milliseconds timeout,
                                   std::chrono::milliseconds each_way,
                                   const std::function<void(size_t before)>& on_waiting) {
  const auto addresses = Resolve(place);
  if (!addresses.ok()) return addresses.status();
  Rates rates;
  rates.address = place.host + ":" + place.port;
  const TcpAttempt attempt = ConnectTcp(addresses->front(), timeout);
  if (attempt.fd < 0) {
    return absl::UnavailableError(absl::StrFormat("%s: %s", rates.address, attempt.why));
  }
  Line line(attempt.fd);
  absl::Status admitted = BeAdmitted(&line, token);
  if (admitted.ok()) admitted = AwaitTurn(&line, on_waiting);
  if (!admitted.ok()) return WithWhom(admitted, rates.address);
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
  // The bytes count as sent when the other end says that it has them: until then they may be in
  // this machine's buffers.
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
