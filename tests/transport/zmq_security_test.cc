// The admission of connections over ZeroMQ, tried by peers that may not connect: written with plain
// sockets and libzmq from wire_format.md. Counters tell how they fare; nothing here waits for a
// time to pass, except where a timeout is tested.

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>
#include <zmq.h>

#include <cstring>

#include "common/transport/zmq/zmq_keys.h"
#include "common/transport/zmq/zmq_transport.h"
#include "tests/support/manual_clock.h"
#include "tests/transport/silent_proxy.h"
#include "tests/transport/transport_fixture.h"

namespace bdn {
namespace {

const std::string kSecret(32, 's');

// A DEALER that is secured as it likes, and never reads unless it is asked to.
class RawDealer {
 public:
  explicit RawDealer(const std::function<void(void* socket)>& secure) {
    const int linger_ms = 0;
    zmq_setsockopt(socket_, ZMQ_LINGER, &linger_ms, sizeof(linger_ms));
    const int one_message = 1;
    zmq_setsockopt(socket_, ZMQ_RCVHWM, &one_message, sizeof(one_message));
    secure(socket_);
  }
  ~RawDealer() {
    zmq_close(socket_);
    zmq_ctx_term(context_);
  }

  void Connect(const std::string& address) { EXPECT_EQ(zmq_connect(socket_, address.c_str()), 0); }
  // A connector that was refused has nobody to send to.
  void Send(const Frame& frame) {
    const auto header = EncodeHeader(frame.header);
    const int more = frame.payload.empty() ? 0 : ZMQ_SNDMORE;
    const bool sent = zmq_send(socket_, header.data(), header.size(), ZMQ_DONTWAIT | more) >= 0;
    if (sent && more != 0) {
      zmq_send(socket_, frame.payload.data(), frame.payload.size(), ZMQ_DONTWAIT);
    }
  }
  void ReadParts(int count) {
    for (int i = 0; i < count; ++i) {
      zmq_msg_t part;
      zmq_msg_init(&part);
      EXPECT_GE(zmq_msg_recv(&part, socket_, 0), 0);
      zmq_msg_close(&part);
    }
  }

 private:
  void* const context_ = zmq_ctx_new();
  void* const socket_ = zmq_socket(context_, ZMQ_DEALER);
};

void SetText(void* socket, int option, const std::string& text) {
  EXPECT_EQ(zmq_setsockopt(socket, option, text.data(), text.size()), 0);
}
void SetCurve(void* socket, const KeyPair& own, const std::string& server) {
  SetText(socket, ZMQ_CURVE_SERVERKEY, server);
  SetText(socket, ZMQ_CURVE_PUBLICKEY, own.public_text);
  SetText(socket, ZMQ_CURVE_SECRETKEY, own.secret_text);
}
void SetPlain(void* socket, const std::string& user, const std::string& password) {
  SetText(socket, ZMQ_PLAIN_USERNAME, user);
  SetText(socket, ZMQ_PLAIN_PASSWORD, password);
}

std::string CurveGreeting() {
  std::string greeting(64, '\0');  // ZMTP 3.1
  greeting[0] = '\xff';
  greeting[9] = '\x7f';
  greeting[10] = 3;
  greeting[11] = 1;
  greeting.replace(12, 5, "CURVE");
  return greeting;
}

// A listener, a client that it admits, and any others.
class ZmqSecurityTest : public testing::Test {
 protected:
  void Start(ZmqOptions options) {
    server_ = *MakeZmqTransport(options);
    client_ = *MakeZmqTransport({});
    server_->Start(inbox_.Handler());
    address_ = ListenAt(server_.get(), "tcp://127.0.0.1:0");
    server_->Admit({{client_->public_key(), member_.public_key}, kSecret});
    client_->Start([](ConnectionId, Frame) {});
  }
  // After all that was tried the client is served as ever, and has been the only one.
  void ExpectOnlyTheClientGetsThrough() {
    const ConnectionId to_server =
        *client_->Connect(PeerAt(address_, server_->security(), server_->public_key(), kSecret));
    client_->Send(to_server, FrameOf(7, 100), completions_.Expect());
    ExpectSameFrame(inbox_.WaitFor(1).at(0).frame, FrameOf(7, 100));
    EXPECT_EQ(server_->KeyOf(inbox_.WaitFor(1).at(0).from), client_->public_key());
    EXPECT_EQ(inbox_.size(), 1u);
    EXPECT_EQ(server_->stats().bytes_received, kHeaderBytes + 100);
    EXPECT_EQ(server_->stats().frames_malformed, 0u);
    EXPECT_EQ(server_->stats().connections_open, 1u);
  }
  uint64_t refused() const { return server_->stats().connections_refused; }

  // Connects without a word.
  int Knock() const {
    sockaddr_in name{};
    name.sin_family = AF_INET;
    name.sin_port =
        htons(static_cast<uint16_t>(std::stoi(address_.substr(address_.rfind(':') + 1))));
    name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    EXPECT_EQ(connect(fd, reinterpret_cast<sockaddr*>(&name), sizeof(name)), 0)
        << std::strerror(errno);
    return fd;
  }

  Completions completions_;
  Inbox inbox_;
  const KeyPair member_ = *MakeKeyPair();
  const KeyPair stranger_ = *MakeKeyPair();
  std::string address_;
  std::unique_ptr<Transport> server_;
  std::unique_ptr<Transport> client_;
};

TEST_F(ZmqSecurityTest, NobodyGetsAFrameToAnEncryptedListenerWithoutAKeyOfTheRoster) {
  Start({.security = LinkSecurity::kEncrypted});
  const std::string server = ToZ85(server_->public_key().view());
  const std::function<void(void*)> ways[] = {
      [](void*) {},                                                             // as a plain client
      [&](void* socket) { SetCurve(socket, stranger_, server); },               // with another key
      [&](void* socket) { SetCurve(socket, member_, stranger_.public_text); },  // to another server
      [&](void* socket) { SetPlain(socket, member_.public_text, ToZ85(kSecret)); },
  };
  for (const auto& way : ways) {
    const uint64_t before = refused();
    RawDealer dealer(way);
    dealer.Connect(address_);
    for (Step step = 1; step < 50; ++step) dealer.Send(FrameOf(step, 100000));
    AwaitTrue([&] { return refused() > before; });
  }
  ExpectOnlyTheClientGetsThrough();
}

TEST_F(ZmqSecurityTest, NobodyGetsAFrameToAnAuthenticatedListenerWithoutTheSecret) {
  Start({.security = LinkSecurity::kAuthenticated});
  const std::string server = ToZ85(server_->public_key().view());
  const std::string wrong = ToZ85(std::string(31, 's') + "x");
  const std::function<void(void*)> ways[] = {
      [](void*) {},
      [&](void* socket) { SetPlain(socket, member_.public_text, wrong); },
      [&](void* socket) { SetPlain(socket, stranger_.public_text, ToZ85(kSecret)); },
      [&](void* socket) { SetPlain(socket, "worker", ToZ85(kSecret)); },
      [&](void* socket) { SetCurve(socket, member_, server); },
  };
  for (const auto& way : ways) {
    const uint64_t before = refused();
    RawDealer dealer(way);
    dealer.Connect(address_);
    for (Step step = 1; step < 50; ++step) dealer.Send(FrameOf(step, 100000));
    AwaitTrue([&] { return refused() > before; });
  }
  ExpectOnlyTheClientGetsThrough();
}

TEST_F(ZmqSecurityTest, ListensEncryptedOnlyWhereOthersCanConnect) {
  const auto security_at = [](const std::string& address) {
    auto transport = *MakeZmqTransport();
    transport->Start([](ConnectionId, Frame) {});
    EXPECT_TRUE(transport->Listen(address).ok()) << address;
    return transport->security();
  };
  EXPECT_EQ(security_at("tcp://0.0.0.0:0"), LinkSecurity::kEncrypted);
  EXPECT_EQ(security_at("tcp://127.0.0.1:0"), LinkSecurity::kAuthenticated);
  TempDir directory;
  EXPECT_EQ(security_at("ipc://" + directory.path() + "/s"), LinkSecurity::kAuthenticated);
}

TEST_F(ZmqSecurityTest, ForgetsTenThousandConnectionsOfAPortScanner) {
  Start({.security = LinkSecurity::kEncrypted});
  for (int i = 0; i < 10000; ++i) {
    const int fd = Knock();
    if (i % 2 == 0) {
      EXPECT_EQ(write(fd, "GET / HTTP/1.1\r\n\r\n", 18), 18);
    }
    // Without waiting for the other end: nothing of it lingers in the system.
    const linger at_once{1, 0};
    setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
    close(fd);
    // The queue of those that wait to be accepted is short.
    if (i % 50 == 49) AwaitTrue([&] { return refused() + 50 > static_cast<uint64_t>(i); });
  }
  AwaitTrue([&] { return server_->stats().connections_new == 0; });
  EXPECT_GE(refused(), 9900u);  // one that resets before it is accepted was never there
  ExpectOnlyTheClientGetsThrough();
}

TEST_F(ZmqSecurityTest, EndsHandshakesThatAreNotGoneOnWith) {
  Start({.security = LinkSecurity::kEncrypted, .handshake_timeout = absl::Milliseconds(300)});
  std::vector<int> fds;
  for (int i = 0; i < 200; ++i) {
    fds.push_back(Knock());
    // The beginning of ZeroMQ's greeting.
    if (i % 2 == 0) {
      EXPECT_EQ(write(fds.back(), "\xff\0\0\0", 4), 4);
    }
  }
  AwaitTrue([&] { return refused() == 200; });
  AwaitTrue([&] { return server_->stats().connections_new == 0; });
  for (const int fd : fds) close(fd);
  ExpectOnlyTheClientGetsThrough();
}

// A handshake's time is of the whole, however often a byte of it comes.
TEST_F(ZmqSecurityTest, EndsHandshakesThatGoOnByteByByte) {
  Start({.security = LinkSecurity::kEncrypted, .handshake_timeout = absl::Milliseconds(300)});
  // A greeting that ends with a command so long that it never comes.
  const std::string opening = CurveGreeting() + std::string("\x06\0\0\0\0\0\x10\0\0", 9);
  std::vector<int> fds;
  for (int i = 0; i < 50; ++i) fds.push_back(Knock());
  size_t sent = 0;
  AwaitTrue([&] {
    const char next = sent < opening.size() ? opening[sent] : 'x';
    for (const int fd : fds) (void)send(fd, &next, 1, MSG_NOSIGNAL);
    ++sent;
    return refused() == fds.size();
  });
  EXPECT_EQ(server_->stats().connections_cut, 0u) << "its time was over, not its bytes too many";
  for (const int fd : fds) close(fd);
  ExpectOnlyTheClientGetsThrough();
}

TEST_F(ZmqSecurityTest, HoldsNoMoreNewcomersThanItMay) {
  Start({.security = LinkSecurity::kEncrypted,
         .handshake_timeout = absl::Minutes(10),
         .max_newcomers = 20});
  std::vector<int> fds;
  for (int i = 0; i < 100; ++i) fds.push_back(Knock());
  AwaitTrue([&] { return refused() >= 80; });
  AwaitTrue([&] { return server_->stats().connections_new <= 20; });
  ExpectOnlyTheClientGetsThrough();
  for (const int fd : fds) close(fd);
}

TEST_F(ZmqSecurityTest, CutsNewcomersThatSendMoreThanAHandshake) {
  Start({.security = LinkSecurity::kEncrypted,
         .handshake_timeout = absl::Minutes(10),
         .max_newcomer_bytes = 1 << 20});
  const int fd = Knock();
  std::string greeting = CurveGreeting();
  // A command of 1 GiB, the most that a message may have.
  greeting += std::string("\x06\0\0\0\0\x40\0\0\0", 9);
  EXPECT_EQ(write(fd, greeting.data(), greeting.size()), static_cast<ssize_t>(greeting.size()));
  const std::string block(1 << 16, 'x');
  uint64_t sent = 0;
  while (sent < uint64_t{1} << 30) {
    const ssize_t wrote = send(fd, block.data(), block.size(), MSG_NOSIGNAL);
    if (wrote <= 0) break;
    sent += static_cast<uint64_t>(wrote);
  }
  EXPECT_LT(sent, uint64_t{1} << 30);
  EXPECT_EQ(server_->stats().connections_cut, 1u);
  AwaitTrue([&] { return refused() == 1; });
  close(fd);
  ExpectOnlyTheClientGetsThrough();
}

TEST_F(ZmqSecurityTest, QueuesNoMoreForAPeerThanItMayAndServesHimWhenHeReads) {
  constexpr uint64_t kMiB = uint64_t{1} << 20;
  Start({.security = LinkSecurity::kAuthenticated,
         .silence_timeout = absl::ZeroDuration(),
         .max_bytes_queued = 8 * kMiB});
  RawDealer dealer([&](void* socket) { SetPlain(socket, member_.public_text, ToZ85(kSecret)); });
  dealer.Connect(address_);
  dealer.Send(FrameOf(1, 0));
  const ConnectionId peer = inbox_.WaitFor(1).at(0).from;
  const Frame reply = FrameOf(2, kMiB);
  // One by one, so that what is refused is refused for the queue alone.
  int sent = 0;
  for (int i = 0; i < 200; ++i) {
    server_->Send(peer, reply, completions_.Expect());
    AwaitTrue([&] {
      return server_->stats().frames_sent + server_->stats().sends_failed ==
             static_cast<uint64_t>(i) + 1;
    });
    EXPECT_LE(server_->stats().bytes_queued, 8 * kMiB);
  }
  sent = static_cast<int>(server_->stats().frames_sent);
  EXPECT_GT(server_->stats().sends_failed, 0u);
  EXPECT_GT(sent, 7);
  EXPECT_EQ(server_->stats().connections_cut, 0u);

  dealer.ReadParts(2 * sent);
  AwaitTrue([&] { return server_->stats().bytes_queued == 0; });
  server_->Send(peer, reply, completions_.Expect());
  dealer.ReadParts(2);
  for (const absl::Status& status : completions_.WaitForAll()) {
    EXPECT_TRUE(status.ok() || absl::IsResourceExhausted(status)) << status;
  }
}

TEST_F(ZmqSecurityTest, LimitsTheAnswersToProbesThatNobodyReads) {
  Start({.security = LinkSecurity::kAuthenticated,
         .silence_timeout = absl::ZeroDuration(),
         .max_frames_queued = 64});
  RawDealer dealer([&](void* socket) { SetPlain(socket, member_.public_text, ToZ85(kSecret)); });
  dealer.Connect(address_);
  dealer.Send(FrameOf(1, 0));
  const ConnectionId peer = inbox_.WaitFor(1).at(0).from;
  constexpr uint64_t kAnswers = 200000;
  const Frame answer = FrameOf(2, 100);
  for (uint64_t i = 0; i < kAnswers; ++i) server_->Send(peer, answer, completions_.Expect());
  AwaitTrue(
      [&] { return server_->stats().frames_sent + server_->stats().sends_failed == kAnswers; });
  // ZeroMQ gives way in steps of half of what it may hold; the system's buffers hold the rest.
  EXPECT_LE(server_->stats().bytes_queued, 2 * 64 * 100u);
  EXPECT_GT(server_->stats().sends_failed, 0u);
  server_->Close();
  server_->Join();
  completions_.WaitForAll();
}

TEST_F(ZmqSecurityTest, CutsAPeerThatTakesNothing) {
  ManualClock clock;
  Start({.security = LinkSecurity::kAuthenticated,
         .silence_timeout = absl::Hours(1),
         .max_bytes_queued = 1 << 20,
         .clock = &clock});
  RawDealer dealer([&](void* socket) { SetPlain(socket, member_.public_text, ToZ85(kSecret)); });
  dealer.Connect(address_);
  dealer.Send(FrameOf(1, 0));
  const ConnectionId peer = inbox_.WaitFor(1).at(0).from;
  const Frame reply = FrameOf(2, 1 << 20);
  while (server_->stats().sends_failed < 100) server_->Send(peer, reply, completions_.Expect());
  EXPECT_EQ(server_->stats().connections_cut, 0u);
  while (server_->stats().connections_cut == 0) {
    clock.Advance(absl::Hours(2));  // again: the system's buffers may have taken one more
    server_->Send(peer, reply, completions_.Expect());
    std::this_thread::yield();
  }
  // The waiting frames are given back, and the connection is forgotten.
  AwaitTrue([&] { return server_->stats().bytes_queued == 0; });
  AwaitTrue([&] { return server_->stats().connections_open == 0; });
  server_->Send(peer, reply, completions_.Expect());
  EXPECT_TRUE(absl::IsUnavailable(completions_.Last())) << completions_.Last();
  server_->Close();
  server_->Join();
}

TEST_F(ZmqSecurityTest, ReplacesAConnectionThatAMiddleboxForgot) {
  for (const LinkSecurity security : {LinkSecurity::kOpen, LinkSecurity::kEncrypted}) {
    Inbox inbox;
    auto server = *MakeZmqTransport({.security = security});
    auto client = *MakeZmqTransport({.silence_timeout = absl::Milliseconds(500)});
    server->Start(inbox.Handler());
    SilentProxy proxy(ListenAt(server.get(), "tcp://127.0.0.1:0"));
    server->Admit({{client->public_key()}, kSecret});
    client->Start([](ConnectionId, Frame) {});
    const ConnectionId to_server =
        *client->Connect(PeerAt(proxy.address(), security, server->public_key(), kSecret));
    client->Send(to_server, FrameOf(1, 10), completions_.Expect());
    const ConnectionId first = inbox.WaitFor(1).at(0).from;
    proxy.GoSilent();
    AwaitTrue([&] { return proxy.num_accepted() == 2; });  // without anything being sent
    client->Send(to_server, FrameOf(2, 10), completions_.Expect());
    EXPECT_NE(inbox.WaitFor(2).at(1).from, first);
    client->Close();
    client->Join();
    server->Close();
    server->Join();
  }
}

}  // namespace
}  // namespace bdn
