// Tests of ZeroMQ's transport alone: hostile bytes, socket files, frames that linger at the end.

#include "common/transport/zmq/zmq_transport.h"

#include <arpa/inet.h>
#include <malloc.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>
#include <zmq.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <thread>

#include "common/transport/zmq/zmq_address.h"
#include "gmock/gmock.h"
#include "tests/transport/transport_fixture.h"

namespace bdn {
namespace {

using ::testing::HasSubstr;

// kOpen, as zmq_security_test.cc tests who may connect.
std::unique_ptr<Transport> MakeTransport(ZmqOptions options = {}) {
  options.security = LinkSecurity::kOpen;
  return *MakeZmqTransport(options);
}

// A peer that sends whatever parts it likes.
class RawPeer {
 public:
  explicit RawPeer(const std::string& address) {
    const int linger_ms = 1000;
    zmq_setsockopt(socket_, ZMQ_LINGER, &linger_ms, sizeof(linger_ms));
    EXPECT_EQ(zmq_connect(socket_, address.c_str()), 0);
  }
  ~RawPeer() {
    zmq_close(socket_);
    zmq_ctx_term(context_);
  }

  void SendParts(const std::vector<std::string>& parts) {
    for (size_t i = 0; i < parts.size(); ++i) {
      const int more = i + 1 < parts.size() ? ZMQ_SNDMORE : 0;
      EXPECT_GE(zmq_send(socket_, parts[i].data(), parts[i].size(), more), 0);
    }
  }

 private:
  void* const context_ = zmq_ctx_new();
  void* const socket_ = zmq_socket(context_, ZMQ_DEALER);
};

// A peer that speaks ZMTP 3 by itself: libzmq lets out no part of a message before it has all.
class RawConnection {
 public:
  explicit RawConnection(const std::string& address) {
    // A peer that was cut may not be told so while its window is full.
    const timeval most{.tv_sec = 0, .tv_usec = 200'000};
    EXPECT_EQ(setsockopt(fd_, SOL_SOCKET, SO_SNDTIMEO, &most, sizeof(most)), 0);
    sockaddr_in name{};
    name.sin_family = AF_INET;
    name.sin_port = htons(static_cast<uint16_t>(std::stoi(address.substr(address.rfind(':') + 1))));
    name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(connect(fd_, reinterpret_cast<sockaddr*>(&name), sizeof(name)), 0);
    std::string greeting(64, '\0');
    greeting[0] = '\xff';
    greeting[9] = '\x7f';
    greeting[10] = 3;
    greeting.replace(12, 4, "NULL");
    Write(greeting);
    const std::string ready = std::string("\x05READY\x0bSocket-Type\0\0\0\x06", 22) + "DEALER";
    Write(std::string("\x04") + static_cast<char>(ready.size()) + ready);
    ReadExactly(greeting.size());
    ReadExactly(static_cast<unsigned char>(ReadExactly(2)[1]));  // its own READY
  }
  ~RawConnection() { close(fd_); }

  // At most 255 bytes.
  void SendPart(const std::string& part, bool more) {
    Write(std::string(1, more ? '\x01' : '\0') + static_cast<char>(part.size()) + part);
  }
  // It may have been cut.
  void Write(const std::string& bytes) {
    for (size_t sent = 0; sent < bytes.size();) {
      const ssize_t wrote = send(fd_, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
      if (wrote <= 0) return;
      sent += static_cast<size_t>(wrote);
    }
  }

 private:
  std::string ReadExactly(size_t count) {
    std::string bytes(count, '\0');
    EXPECT_EQ(recv(fd_, bytes.data(), count, MSG_WAITALL), static_cast<ssize_t>(count));
    return bytes;
  }

  const int fd_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
};

std::string HeaderText(const Frame& frame) {
  const auto header = EncodeHeader(frame.header);
  return std::string(reinterpret_cast<const char*>(header.data()), header.size());
}
std::string PayloadText(const Frame& frame) {
  return std::string(reinterpret_cast<const char*>(frame.payload.data()), frame.payload.size());
}

sockaddr_un NameOf(const std::string& path) {
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  std::strncpy(name.sun_path, path.c_str(), sizeof(name.sun_path) - 1);
  return name;
}

class ZmqTransportTest : public testing::Test {
 protected:
  Completions completions_;
  Inbox inbox_;
  TempDir directory_;
  const std::string ipc_path_ = directory_.path() + "/socket";
  const std::string ipc_address_ = "ipc://" + ipc_path_;
};

TEST_F(ZmqTransportTest, DropsAndCountsWhatIsNoFrame) {
  auto server = MakeTransport();
  server->Start(inbox_.Handler());
  const std::string address = ListenAt(server.get(), "tcp://127.0.0.1:0");
  RawPeer peer(address);
  const Frame good = FrameOf(1, 50);
  const std::string header = HeaderText(good);
  const std::string payload = PayloadText(good);
  const std::string empty_header = HeaderText(FrameOf(2, 0));

  size_t bad = 0;
  const auto send_bad = [&](const std::vector<std::string>& parts) {
    peer.SendParts(parts);
    ++bad;
  };
  std::mt19937 random(1);
  for (int i = 0; i < 20; ++i) {
    std::string noise(random() % 300, '\0');
    for (char& c : noise) c = static_cast<char>(random());
    send_bad({noise});
  }
  for (size_t size = 0; size < header.size(); ++size) send_bad({header.substr(0, size), payload});
  send_bad({header + "x", payload});
  send_bad({header});                     // no payload
  send_bad({header, payload.substr(1)});  // a short one
  send_bad({header, payload + "x"});      // a long one
  send_bad({empty_header, ""});           // an empty part is not none
  send_bad({empty_header, "x"});
  peer.SendParts({header, payload});

  ExpectSameFrame(inbox_.WaitFor(1).at(0).frame, good);
  EXPECT_EQ(server->stats().frames_malformed, bad);
  EXPECT_EQ(server->stats().frames_received, 1u);
}

TEST_F(ZmqTransportTest, CutsOffAPeerWhoseMessagesHaveMorePartsThanAFrame) {
  auto server = MakeTransport();
  server->Start(inbox_.Handler());
  const std::string address = ListenAt(server.get(), "tcp://127.0.0.1:0");
  const Frame good = FrameOf(1, 50);
  uint64_t cut = 0;
  for (const auto& parts : std::vector<std::vector<std::string>>{
           {HeaderText(good), PayloadText(good), ""},
           {"", HeaderText(good), PayloadText(good)},  // as a REQ socket would
           std::vector<std::string>(100000, "xx")}) {
    RawPeer peer(address);
    peer.SendParts(parts);
    ++cut;
    AwaitTrue([&] { return server->stats().connections_cut == cut; });
    AwaitTrue([&] { return server->stats().connections_open == 0; });
  }
  EXPECT_EQ(server->stats().frames_malformed, cut);
  EXPECT_EQ(inbox_.size(), 0u);
}

TEST_F(ZmqTransportTest, CutsOffAPeerThatSendsTooMuch) {
  auto server = MakeTransport({.max_payload_bytes = 1000});
  server->Start(inbox_.Handler());
  const std::string address = ListenAt(server.get(), "tcp://127.0.0.1:0");
  auto client = MakeTransport();
  client->Start([](ConnectionId, Frame) {});
  const ConnectionId to_server = *client->Connect(PeerAt(address));
  client->Send(to_server, FrameOf(1, 1001), completions_.Expect());
  client->Send(*client->Connect(PeerAt(address)), FrameOf(2, 1000), completions_.Expect());
  EXPECT_EQ(inbox_.WaitFor(1).at(0).frame.header.step, 2u);
  client.reset();
  EXPECT_EQ(inbox_.size(), 1u);
}

TEST_F(ZmqTransportTest, CutsOffAPeerThatDoesNotEndItsMessage) {
  auto server = MakeTransport({.max_payload_bytes = 1 << 20});
  server->Start(inbox_.Handler());
  const std::string address = ListenAt(server.get(), "tcp://127.0.0.1:0");
  RawConnection member(address);
  const Frame good = FrameOf(1, 50);
  member.SendPart(HeaderText(good), true);
  member.SendPart(PayloadText(good), false);
  ExpectSameFrame(inbox_.WaitFor(1).at(0).frame, good);
  RawConnection nobody(address);
  RawConnection brief(address);
  const auto parts = [](size_t part_bytes, size_t bytes) {
    std::string part = {'\x01', static_cast<char>(part_bytes)};
    part.append(part_bytes, 'x');
    std::string all;
    while (all.size() < bytes) all += part;
    return all;
  };
  const std::pair<RawConnection*, std::string> attacks[] = {
      {&member, parts(254, 32 << 20)},
      {&nobody, parts(254, 32 << 20)},
      {&brief, parts(0, 1 << 20)},  // of two bytes each, as often as it takes
  };
  uint64_t cut = 0;
  for (const auto& [peer, message] : attacks) {
    ++cut;
    // The kernel may hold as much as one of these.
    AwaitTrue([&] {
      peer->Write(message);
      return server->stats().connections_cut == cut;
    });
  }
  AwaitTrue([&] { return server->stats().connections_open == 0; });
  EXPECT_EQ(inbox_.size(), 1u);
  EXPECT_EQ(server->stats().frames_malformed, 0u);
}

// ZeroMQ keeps 64 bytes for each part, also for an empty one, so a connection could take much
// memory before its payload reaches 1 GiB.
TEST_F(ZmqTransportTest, ANewcomersEmptyPartsTakeLittleMemory) {
  auto server = MakeTransport({.max_first_bytes = 1 << 16});
  server->Start(inbox_.Handler());
  RawConnection stranger(ListenAt(server.get(), "tcp://127.0.0.1:0"));
  std::string parts;
  while (parts.size() < (1 << 14)) parts += std::string("\x01\0", 2);
  const auto allocated = [] { return mallinfo2().uordblks; };
  const size_t before = allocated();
  size_t most = before;
  AwaitTrue([&] {
    stranger.Write(parts);
    most = std::max(most, allocated());
    return server->stats().connections_cut == 1;
  });
  // Bytes that the kernel had when the connection was cut count as well.
  AwaitTrue([&] {
    const size_t now = allocated();
    most = std::max(most, now);
    return now < before + (size_t{16} << 20);
  });
  EXPECT_LT(most - before, size_t{128} << 20);
}

TEST_F(ZmqTransportTest, RefusesToSendTooMuch) {
  auto client = MakeTransport({.max_payload_bytes = 1000});
  client->Start([](ConnectionId, Frame) {});
  const ConnectionId to_server = *client->Connect(PeerAt(ipc_address_));
  client->Send(to_server, FrameOf(1, 1001), completions_.Expect());
  EXPECT_EQ(completions_.Last().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(completions_.Last().message()), HasSubstr("1001"));
}

TEST_F(ZmqTransportTest, KnowsTheRoundTripAndTheBytesOfAConnectionOverTcpAlone) {
  for (const std::string& address : {std::string("tcp://127.0.0.1:0"), ipc_address_}) {
    Inbox inbox;
    auto server = MakeTransport();
    std::atomic<ConnectionId> from = 0;
    server->Start([&](ConnectionId connection, Frame frame) {
      from = connection;
      server->Send(connection, std::move(frame), [](const absl::Status&) {});
    });
    auto client = MakeTransport();
    client->Start(inbox.Handler());
    const ConnectionId to_server = *client->Connect(PeerAt(ListenAt(server.get(), address)));
    EXPECT_FALSE(client->FactsOf(to_server).is_network) << "no frame has come on it";
    client->Send(to_server, FrameOf(1, 100'000), [](const absl::Status&) {});
    inbox.WaitFor(1);
    const ConnectionFacts facts = client->FactsOf(to_server);
    const bool is_tcp = address != ipc_address_;
    EXPECT_EQ(facts.is_network, is_tcp);
    EXPECT_EQ(facts.round_trip > absl::ZeroDuration(), is_tcp);
    EXPECT_LT(facts.round_trip, absl::Seconds(1));
    EXPECT_EQ(facts.bytes_sent > 100'000, is_tcp);
    EXPECT_EQ(facts.bytes_received > 100'000, is_tcp);
    EXPECT_EQ(facts.round_trip_now > absl::ZeroDuration(), is_tcp);
    EXPECT_GE(facts.busy, facts.held_back);
    // Its listener knows as much.
    const ConnectionFacts theirs = server->FactsOf(from);
    EXPECT_EQ(theirs.is_network, is_tcp);
    EXPECT_EQ(theirs.bytes_sent > 100'000, is_tcp);
    EXPECT_EQ(theirs.bytes_received > 100'000, is_tcp);
    client->Disconnect(to_server);
    EXPECT_FALSE(client->FactsOf(to_server + 1).is_network) << "there is no such connection";
    client.reset();
  }
}

TEST_F(ZmqTransportTest, LetsOutWhatWasSentBeforeClose) {
  constexpr int kFrames = 16;
  auto server = MakeTransport({.linger = absl::Seconds(30)});
  server->Start([&](ConnectionId from, Frame) {
    for (int i = 0; i < kFrames; ++i) {
      server->Send(from, FrameOf(i, size_t{1} << 20), completions_.Expect());
    }
    server->Close();
  });
  auto client = MakeTransport();
  client->Start(inbox_.Handler());
  client->Send(*client->Connect(PeerAt(ListenAt(server.get(), ipc_address_))), FrameOf(1, 0),
               completions_.Expect());
  for (const auto& [from, frame] : inbox_.WaitFor(kFrames)) EXPECT_TRUE(CheckPayload(frame).ok());
  server.reset();
}

TEST_F(ZmqTransportTest, DoesNotWaitForAPeerThatNeverCameForLongerThanItsLinger) {
  auto client = MakeTransport({.linger = absl::ZeroDuration()});
  client->Start(inbox_.Handler());
  client->Send(*client->Connect(PeerAt(ipc_address_)), FrameOf(1, 1000), completions_.Expect());
  client->Close();
  client->Join();
  EXPECT_EQ(completions_.Last().code(), absl::StatusCode::kUnavailable);
}

TEST_F(ZmqTransportTest, RemovesItsSocketFile) {
  auto server = MakeTransport();
  server->Start(inbox_.Handler());
  ASSERT_TRUE(server->Listen(ipc_address_).ok());
  EXPECT_TRUE(std::filesystem::exists(ipc_path_));
  server->Close();
  server->Join();
  EXPECT_FALSE(std::filesystem::exists(ipc_path_));
}

// Whatever the umask: the mode is there with the name.
TEST_F(ZmqTransportTest, OnlyItsOwnUserReachesASocketFile) {
  const mode_t before = umask(0);
  auto server = MakeTransport();
  server->Start(inbox_.Handler());
  const absl::Status listening = server->Listen(ipc_address_).status();
  umask(before);
  ASSERT_TRUE(listening.ok()) << listening;
  EXPECT_EQ(std::filesystem::status(ipc_path_).permissions(),
            std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
  auto client = MakeTransport();
  client->Start([](ConnectionId, Frame) {});
  client->Send(*client->Connect(PeerAt(ipc_address_)), FrameOf(1, 10), completions_.Expect());
  EXPECT_EQ(inbox_.WaitFor(1).size(), 1u);

  if (geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  std::filesystem::permissions(directory_.path(), std::filesystem::perms::all);
  const sockaddr_un name = NameOf(ipc_path_);
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  constexpr uid_t kNobody = 65534;
  const pid_t child = fork();
  if (child == 0) {
    const bool is_other = setuid(kNobody) == 0;
    const int connected = connect(fd, reinterpret_cast<const sockaddr*>(&name), sizeof(name));
    _exit(!is_other ? 1 : connected == 0 ? 2 : errno == EACCES ? 0 : 3);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  // The user of the caller decides: the same descriptor connects for this user.
  EXPECT_EQ(connect(fd, reinterpret_cast<const sockaddr*>(&name), sizeof(name)), 0);
  close(fd);
}

TEST_F(ZmqTransportTest, TakesOverAStaleSocketFile) {
  const sockaddr_un name = NameOf(ipc_path_);
  const int fd = socket(AF_UNIX, SOCK_STREAM, 0);
  ASSERT_EQ(bind(fd, reinterpret_cast<const sockaddr*>(&name), sizeof(name)), 0);
  close(fd);  // as after a kill: the file stays
  ASSERT_TRUE(std::filesystem::exists(ipc_path_));

  auto server = MakeTransport();
  server->Start(inbox_.Handler());
  EXPECT_EQ(server->Listen(ipc_address_).status(), absl::OkStatus());
}

TEST_F(ZmqTransportTest, LeavesAFileAloneThatIsNoSocket) {
  std::ofstream(ipc_path_) << "precious";
  auto server = MakeTransport();
  server->Start(inbox_.Handler());
  const absl::Status status = server->Listen(ipc_address_).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr(ipc_path_));
  EXPECT_EQ(std::filesystem::file_size(ipc_path_), 8u);
}

TEST_F(ZmqTransportTest, ListensAtSeveralAddresses) {
  auto server = MakeTransport({.io_threads = 2});
  server->Start(inbox_.Handler());
  const std::string tcp = ListenAt(server.get(), "tcp://127.0.0.1:0");
  const std::string ipc = ListenAt(server.get(), ipc_address_);
  auto client = MakeTransport();
  client->Start([](ConnectionId, Frame) {});
  client->Send(*client->Connect(PeerAt(tcp)), FrameOf(1, 10), completions_.Expect());
  client->Send(*client->Connect(PeerAt(ipc)), FrameOf(2, 10), completions_.Expect());
  const auto arrived = inbox_.WaitFor(2);
  EXPECT_NE(arrived.at(0).from, arrived.at(1).from);
}

// The thread that accepts a connection tells of it last, and another one may have its first frame
// by then.
TEST_F(ZmqTransportTest, KeepsConnectionsWhoseFirstFrameIsThereBeforeTheyAreToldOf) {
  std::atomic<int> gone{0};
  auto server = MakeTransport({.io_threads = 4});
  server->Start(inbox_.Handler(), [&](ConnectionId) { gone++; });
  const std::string address = ListenAt(server.get(), "tcp://127.0.0.1:0");
  auto client = MakeTransport({.io_threads = 4});
  client->Start([](ConnectionId, Frame) {});
  constexpr int kConnections = 300;
  for (int i = 1; i <= kConnections; ++i) {
    client->Send(*client->Connect(PeerAt(address)), FrameOf(i, 10), completions_.Expect());
    if (i % 10 == 0) inbox_.WaitFor(i);
  }
  EXPECT_EQ(gone, 0);
  server->Close();
  server->Join();
}

// Anything else that wakes the poller may be what reads that a connection was closed.
TEST_F(ZmqTransportTest, TellsOfAClosedConnectionWhateverWakesThePoller) {
  Mutex mu;
  CondVar changed;
  size_t gone = 0;
  auto server = MakeTransport();
  server->Start(inbox_.Handler(), [&](ConnectionId) {
    MutexLock lock(&mu);
    ++gone;
    changed.SignalAll();
  });
  const std::string address = ListenAt(server.get(), "tcp://127.0.0.1:0");
  auto client = MakeTransport();
  client->Start([](ConnectionId, Frame) {});
  ASSERT_TRUE(client->Connect(PeerAt(address)).ok());  // It stays new, and so is looked at.
  std::atomic<bool> is_over{false};
  std::thread waker([&] {
    while (!is_over) server->Disconnect(98765);
  });
  for (size_t i = 1; i <= 100; ++i) {
    const ConnectionId connection = *client->Connect(PeerAt(address));
    client->Send(connection, FrameOf(i, 10), completions_.Expect());
    inbox_.WaitFor(i);
    client->Disconnect(connection);
    const absl::Time deadline = PatienceEnds();
    MutexLock lock(&mu);
    while (gone < i && kClock.WaitUntil(&changed, &mu, deadline)) {
    }
    if (gone == i) continue;
    ADD_FAILURE() << "nobody was told that connection " << i << " is gone";
    break;
  }
  is_over = true;
  waker.join();
  server->Close();
  server->Join();
}

TEST_F(ZmqTransportTest, RefusesOptionsOutOfRange) {
  EXPECT_FALSE(MakeZmqTransport({.io_threads = 0}).ok());
  EXPECT_FALSE(MakeZmqTransport({.linger = absl::InfiniteDuration()}).ok());
  EXPECT_FALSE(MakeZmqTransport({.max_payload_bytes = kMaxPayloadBytes + 1}).ok());
}

TEST(ZmqAddressTest, NamesWhatIsWrong) {
  EXPECT_TRUE(ParseZmqAddress("tcp://10.0.0.1:5555").ok());
  EXPECT_TRUE(ParseZmqAddress("tcp://[::1]:0")->is_ipv6);
  EXPECT_EQ(ParseZmqAddress("ipc:///a/b")->path, "/a/b");
  for (const std::string bad : {"tcp://", "tcp://:1", "tcp://a", "tcp://a:", "tcp://a:70000",
                                "tcp://a:-1", "ipc://relative", "ipc://", "inproc://a"}) {
    const absl::Status status = ParseZmqAddress(bad).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << bad;
    EXPECT_THAT(std::string(status.message()), HasSubstr(bad));
  }
  EXPECT_FALSE(ParseZmqAddress("ipc:///" + std::string(200, 'x')).ok());
}

}  // namespace
}  // namespace bdn
