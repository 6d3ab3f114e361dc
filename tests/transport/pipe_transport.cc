#include "tests/transport/pipe_transport.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <deque>
#include <map>
#include <optional>

#include "common/base/endian.h"
#include "common/base/file_descriptor.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/base/thread.h"
#include "common/transport/transport_counters.h"

namespace bdn {
namespace {
constexpr size_t kHeadBytes = 8 + kHeaderBytes;  // the payload's length, and the header
struct Connection {
  std::optional<sockaddr_un> listener;  // of a connector
  FileDescriptor socket;                // closed while nobody listens
  std::deque<std::pair<std::vector<std::byte>, Transport::SendDone>> waiting;
  size_t sent = 0;  // bytes of the first that waits
  std::vector<std::byte> received;
};

absl::StatusOr<sockaddr_un> AddressOf(const std::string& url) {
  const auto [scheme, name, security, bound] = EndpointOf(url);
  sockaddr_un address = {.sun_family = AF_UNIX, .sun_path = {}};
  if (scheme != "pipe" || name.empty() || name.size() >= sizeof(address.sun_path)) {
    return InvalidArgument("address '%s': expected pipe://NAME of at most 107 bytes", url);
  }
  std::memcpy(address.sun_path + 1, name.data(), name.size());  // behind a zero: an abstract name
  return address;
}

// Returns a socket that `call`, bind or connect, has given the address; a closed one if it failed.
FileDescriptor Open(int (*call)(int, const sockaddr*, socklen_t), const sockaddr_un& address) {
  FileDescriptor made(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const auto* const at = reinterpret_cast<const sockaddr*>(&address);
  return call(made.get(), at, sizeof(address)) == 0 ? std::move(made) : FileDescriptor();
}

class PipeTransport final : public Transport {
 public:
  explicit PipeTransport(uint64_t most) : max_payload_bytes_(most) {}
  ~PipeTransport() override { Join(); }
  void Start(FrameHandler handler, GoneHandler gone) override {
    MutexLock lock(&mu_);
    handler_ = std::move(handler);
    gone_ = gone != nullptr ? std::move(gone) : [](ConnectionId) {};
  }
  absl::StatusOr<std::vector<Endpoint>> Listen(const std::string& url) override {
    BDN_ASSIGN_OR_RETURN(const sockaddr_un address, AddressOf(url));
    MutexLock lock(&mu_);
    if (is_closed_) return Unavailable("listen at %s: the transport is closed", url);
    FileDescriptor socket = Open(bind, address);
    if (listen(socket.get(), SOMAXCONN) != 0) return AlreadyExists("%s is in use", url);
    listener_ = std::move(socket);
    Wake();
    return std::vector<Endpoint>{EndpointOf(url)};
  }
  absl::StatusOr<ConnectionId> Connect(const Peer& peer) override {
    const Endpoint* const endpoint = FindEndpoint(peer.endpoints, "pipe");
    if (endpoint == nullptr) return Unimplemented("the peer offers %s", SchemesOf(peer.endpoints));
    BDN_ASSIGN_OR_RETURN(const sockaddr_un address, AddressOf(UrlOf(*endpoint)));
    MutexLock lock(&mu_);
    if (is_closed_) return Unavailable("connect: the transport is closed");
    connections_[++last_id_].listener = address;
    Wake();
    return last_id_;
  }
  void Disconnect(ConnectionId id) override {
    MutexLock lock(&mu_);
    const auto found = connections_.find(id);
    if (found != connections_.end() && found->second.listener.has_value()) Remove(found);
  }
  PublicKey public_key() const override { return {}; }
  LinkSecurity security() const override { return LinkSecurity::kOpen; }
  bool needs_checksums() const override { return true; }
  void Admit(Admission) override {}
  PublicKey KeyOf(ConnectionId) const override { return {}; }
  ConnectionFacts FactsOf(ConnectionId) const override { return {}; }
  std::shared_ptr<MemoryDomain> memory() override { return HostMemory(); }
  TransportStats stats() const override { return counters_.Read(); }
  void Send(ConnectionId to, Frame frame, SendDone done) override {
    std::vector<std::byte> bytes(8);
    StoreLittle(MutableByteSpan(bytes), 0, uint64_t{frame.payload.size()});
    const auto header = EncodeHeader(frame.header);
    bytes.insert(bytes.end(), header.begin(), header.end());
    bytes.insert(bytes.end(), frame.payload.data(), frame.payload.data() + frame.payload.size());
    MutexLock lock(&mu_);
    Wake();
    const auto found = connections_.find(to);
    if (found != connections_.end()) {
      found->second.waiting.emplace_back(std::move(bytes), std::move(done));
      return;
    }
    const bool is_gone = to != 0 && to <= last_id_;
    Fail(std::move(done), is_gone ? Unavailable("send: connection %d is gone", to)
                                  : NotFound("send: no connection %d", to));
  }
  void Close() override {
    MutexLock lock(&mu_);
    is_closed_ = true;
    while (!connections_.empty()) Remove(connections_.begin());
    listener_ = FileDescriptor();
  }
  void Join() override {
    Close();
    MutexLock lock(&join_mu_);
    is_joining_ = true;
    Wake();
    if (thread_.joinable()) thread_.join();
  }

 private:
  using Connections = std::map<ConnectionId, Connection>;
  void Wake() { eventfd_write(wake_.get(), 1); }
  void Fail(SendDone done, absl::Status status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    counters_.sends_failed.Add();
    due_.push_back([done = std::move(done), status = std::move(status)] { done(status); });
  }
  void Remove(Connections::iterator at) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    for (auto& [bytes, done] : at->second.waiting) {
      Fail(std::move(done), Unavailable("send: connection %d is gone", at->first));
    }
    connections_.erase(at);
    Wake();  // a socket that poll() has in hand is not closed before poll() returns
  }
  // Sockets are used under the lock and never block; callbacks run without it.
  void Run() {
    while (true) {
      std::vector<std::function<void()>> due;
      std::vector<pollfd> fds = {{wake_.get(), POLLIN, 0}};
      int timeout = -1;
      {
        MutexLock lock(&mu_);
        if (handler_ != nullptr) Work(&fds, &timeout);
        due.swap(due_);
        if (due.empty() && is_joining_) return;
      }
      for (auto& each : due) std::exchange(each, nullptr)();
      poll(fds.data(), fds.size(), due.empty() ? timeout : 0);
      eventfd_t count;
      eventfd_read(wake_.get(), &count);
    }
  }
  // Does what can be done, and says what to wait for until there is more.
  void Work(std::vector<pollfd>* fds, int* timeout) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    fds->push_back({listener_.get(), POLLIN, 0});
    for (int fd; (fd = accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK)) >= 0;) {
      connections_[++last_id_].socket = FileDescriptor(fd);
    }
    for (auto next = connections_.begin(); next != connections_.end();) {
      const auto at = next++;
      Connection& c = at->second;
      if (!c.socket.is_open()) c.socket = Open(connect, *c.listener);
      if (!c.socket.is_open()) *timeout = 10;  // ms, until it dials again
      Write(&c);
      const int events = c.waiting.empty() ? POLLIN : POLLIN | POLLOUT;
      fds->push_back({c.socket.get(), static_cast<short>(events), 0});
      if (!c.socket.is_open() || Read(at->first, &c)) continue;
      if (!c.listener.has_value()) due_.push_back([this, id = at->first] { gone_(id); });
      Remove(at);
    }
  }
  // Writes until the socket takes no more. Read notices a peer that has gone.
  void Write(Connection* c) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    while (!c->waiting.empty()) {
      auto& [bytes, done] = c->waiting.front();
      const ssize_t n =
          send(c->socket.get(), &bytes[c->sent], bytes.size() - c->sent, MSG_NOSIGNAL);
      if (n < 0) return;
      c->sent += static_cast<size_t>(n);
      if (c->sent < bytes.size()) continue;
      counters_.frames_sent.Add();
      counters_.bytes_sent.Add(bytes.size() - 8);
      due_.push_back([done = std::move(done)] { done(absl::OkStatus()); });
      c->waiting.pop_front();
      c->sent = 0;
    }
  }
  // False: the peer has gone, or does not speak as it must.
  bool Read(ConnectionId id, Connection* c) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    std::vector<std::byte> bytes(65536);
    const ssize_t got = recv(c->socket.get(), bytes.data(), bytes.size(), 0);
    if (got <= 0) return got < 0 && (errno == EAGAIN || errno == EINTR);
    c->received.insert(c->received.end(), bytes.begin(), bytes.begin() + got);
    ByteSpan rest(c->received);
    while (rest.size() >= kHeadBytes) {
      const auto length = LoadLittle<uint64_t>(rest, 0);
      if (length > max_payload_bytes_) return false;
      if (rest.size() - kHeadBytes < length) break;
      const absl::StatusOr<FrameHeader> header = DecodeHeader(rest.subspan(8, kHeaderBytes));
      const bool is_frame = header.ok() && header->payload_bytes == length;
      (is_frame ? counters_.frames_received : counters_.frames_malformed).Add();
      if (is_frame) {
        counters_.bytes_received.Add(kHeaderBytes + length);
        const Frame frame{*header, Buffer::CopyOf(rest.subspan(kHeadBytes, length))};
        due_.push_back([this, id, frame] { handler_(id, frame); });
      }
      rest = rest.subspan(kHeadBytes + length);
    }
    c->received.erase(c->received.begin(), c->received.end() - static_cast<ptrdiff_t>(rest.size()));
    return true;
  }
  const uint64_t max_payload_bytes_;
  const FileDescriptor wake_{eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
  FrameHandler handler_;  // const after Start, as the next
  GoneHandler gone_;
  TransportCounters counters_;
  Mutex mu_;
  FileDescriptor listener_ ABSL_GUARDED_BY(mu_);
  ConnectionId last_id_ ABSL_GUARDED_BY(mu_) = 0;
  Connections connections_ ABSL_GUARDED_BY(mu_);
  std::vector<std::function<void()>> due_ ABSL_GUARDED_BY(mu_);  // callbacks
  bool is_closed_ ABSL_GUARDED_BY(mu_) = false;
  std::atomic<bool> is_joining_ = false;
  Mutex join_mu_;
  std::thread thread_ = StartThread("bdn-pipe", [this] { Run(); });
};
}  // namespace

absl::StatusOr<std::unique_ptr<Transport>> MakePipeTransport(std::unique_ptr<Transport>*,
                                                             const TransportOptions& options) {
  return std::make_unique<PipeTransport>(options.max_frame_bytes);
}
}  // namespace bdn
