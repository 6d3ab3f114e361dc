#include "common/transport/shm/shm_transport.h"

#include <dirent.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstddef>
#include <cstring>

#include "common/base/secret.h"
#include "common/transport/shm/shm_socket.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/manual_clock.h"
#include "tests/transport/transport_fixture.h"

namespace bdn {
namespace {

const std::string kSecret(32, 's');

std::string NewAddress() {
  static int last = 0;
  return absl::StrCat("shm://bdn-test-of-shm-", getpid(), "-", ++last);
}

class ShmTransportTest : public ::testing::Test {
 protected:
  ~ShmTransportTest() override {
    for (Transport* transport : {client_.get(), server_.get()}) {
      if (transport == nullptr) continue;
      transport->Close();
      transport->Join();
    }
  }
  ConnectionId Start(ShmOptions server_options = {}) {
    server_options.key = *PublicKey::FromBytes(RandomSecret());
    server_ = *ShmTransport::Make(server_options);
    client_ = *ShmTransport::Make({.key = *PublicKey::FromBytes(RandomSecret())});
    server_->Start(inbox_.Handler());
    client_->Start(back_.Handler());
    address_ = ListenAt(server_.get(), NewAddress());
    server_->Admit({{client_->public_key()}, kSecret});
    return *client_->Connect(Server());
  }
  Peer Server(const std::string& secret = kSecret) const {
    return PeerAt(address_, LinkSecurity::kAuthenticated, {}, secret);
  }

  Completions completions_;
  Inbox inbox_;
  Inbox back_;
  std::string address_;
  ManualClock clock_;  // of tests that give it to their server, which it outlives
  std::unique_ptr<ShmTransport> server_;
  std::unique_ptr<ShmTransport> client_;
};

TEST_F(ShmTransportTest, SendsOnceThereIsOneWhereNoDescriptorIsLeft) {
  const ConnectionId to_server = Start();
  client_->Send(to_server, FrameOf(1, 0), completions_.Expect());
  inbox_.WaitFor(1);
  rlimit limit;
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  rlimit none = limit;
  none.rlim_cur = 0;  // those that are open stay
  ::testing::internal::CaptureStderr();
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  client_->Send(to_server, FrameOf(2, 100000), completions_.Expect());
  client_->Send(to_server, FrameOf(3, 100000), completions_.Expect());
  EXPECT_GT(client_->stats().bytes_queued, 200000u);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  const auto arrived = inbox_.WaitFor(3);
  ExpectSameFrame(arrived.at(1).frame, FrameOf(2, 100000));
  ExpectSameFrame(arrived.at(2).frame, FrameOf(3, 100000));
  const std::string log = ::testing::internal::GetCapturedStderr();
  const std::string said = "payloads wait for memory to share";
  EXPECT_THAT(log, ::testing::HasSubstr(said));
  EXPECT_EQ(log.find(said), log.rfind(said)) << log;
  for (const absl::Status& status : completions_.WaitForAll()) EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(client_->stats().bytes_queued, 0u);
}

TEST_F(ShmTransportTest, CopiesAPayloadOfOtherMemoryOnceForAllWhoGetIt) {
  const ConnectionId to_server = Start();
  Inbox others;
  auto other = *ShmTransport::Make({.key = *PublicKey::FromBytes(RandomSecret())});
  other->Start(others.Handler());
  server_->Admit({{client_->public_key(), other->public_key()}, kSecret});
  client_->Send(to_server, FrameOf(1, 0), completions_.Expect());
  other->Send(*other->Connect(Server()), FrameOf(2, 0), completions_.Expect());
  constexpr size_t kBytes = 100'000;
  const Frame value = FrameOf(3, kBytes);
  // Those who have got it keep it, in their inboxes.
  for (const Inbox::Item& from : inbox_.WaitFor(2)) {
    server_->Send(from.from, value, completions_.Expect());
  }
  ExpectSameFrame(back_.WaitFor(1).at(0).frame, value);
  ExpectSameFrame(others.WaitFor(1).at(0).frame, value);
  EXPECT_EQ(server_->bytes_copied(), kBytes);

  Frame lent = value;
  lent.payload = BufferPool(server_->memory()).Get(kBytes);
  std::memcpy(lent.payload.data(), value.payload.data(), kBytes);
  server_->Send(inbox_.WaitFor(2).at(0).from, lent, completions_.Expect());
  server_->Send(inbox_.WaitFor(2).at(0).from, FrameOf(4, kBytes), completions_.Expect());
  completions_.WaitForAll();
  EXPECT_EQ(server_->bytes_copied(), 2 * kBytes) << "the last one's, and not what the arena has";
  other->Close();
  other->Join();
}

TEST_F(ShmTransportTest, CarriesAFrameLargerThanTheMemoryThatThereIs) {
  constexpr size_t kMoreThanASegment = (size_t{33} << 20) + 5;
  const ConnectionId to_server = Start();
  client_->Send(to_server, FrameOf(1, 10), completions_.Expect());
  client_->Send(to_server, FrameOf(2, kMoreThanASegment), completions_.Expect());
  ExpectSameFrame(inbox_.WaitFor(2).at(1).frame, FrameOf(2, kMoreThanASegment));
}

// A gate that opens once and then lets all waiting threads pass.
class Gate {
 public:
  void Wait() {
    MutexLock lock(&mu_);
    while (!is_open_) changed_.Wait(&mu_);
  }
  void Open() {
    MutexLock lock(&mu_);
    is_open_ = true;
    changed_.SignalAll();
  }

 private:
  Mutex mu_;
  CondVar changed_;
  bool is_open_ ABSL_GUARDED_BY(mu_) = false;
};

TEST_F(ShmTransportTest, QueuesNoMoreForAPeerThanItMayAndServesHimWhenHeReads) {
  constexpr int kMostFrames = 100;
  constexpr size_t kBytes = 1000;
  const ConnectionId to_server = Start({.max_frames_queued = kMostFrames});
  client_->Send(to_server, FrameOf(1, 10), completions_.Expect());
  const ConnectionId other = inbox_.WaitFor(1).at(0).from;

  Gate gate;
  Inbox taken;
  const auto slow = *ShmTransport::Make({.key = *PublicKey::FromBytes(RandomSecret())});
  slow->Start([&gate, take = taken.Handler()](ConnectionId from, Frame frame) {
    gate.Wait();
    take(from, std::move(frame));
  });
  server_->Admit({{client_->public_key(), slow->public_key()}, kSecret});
  slow->Send(*slow->Connect(Server()), FrameOf(2, 10), completions_.Expect());
  const ConnectionId peer = inbox_.WaitFor(2).at(1).from;
  Completions ends;
  Step sent = 0;
  while (server_->stats().sends_failed == 0 && sent < 100'000) {
    server_->Send(peer, FrameOf(++sent, kBytes), ends.Expect());
    EXPECT_LE(server_->stats().bytes_queued, kMostFrames * (kHeaderBytes + kBytes));
  }
  EXPECT_GT(server_->stats().sends_failed, 0u);
  EXPECT_EQ(server_->stats().connections_cut, 0u);
  server_->Send(other, FrameOf(3, 10), completions_.Expect());  // who reads is served
  ExpectSameFrame(back_.WaitFor(1).at(0).frame, FrameOf(3, 10));

  gate.Open();
  size_t handed_over = 0;
  for (const absl::Status& status : ends.WaitForAll()) {
    EXPECT_TRUE(status.ok() || absl::IsResourceExhausted(status)) << status;
    handed_over += status.ok() ? 1 : 0;
  }
  EXPECT_EQ(taken.WaitFor(handed_over).size(), handed_over);
  EXPECT_EQ(server_->stats().bytes_queued, 0u);
  server_->Send(peer, FrameOf(++sent, kBytes), completions_.Expect());
  ExpectSameFrame(taken.WaitFor(handed_over + 1).back().frame, FrameOf(sent, kBytes));
  slow->Close();
  slow->Join();
}

TEST_F(ShmTransportTest, RefusesProcessesOfAnotherUser) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  Start();
  const auto name_of = [](const std::string& name) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::copy(name.begin(), name.end(), address.sun_path + 1);
    const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
    return std::pair(address, size);
  };
  const auto [ours, ours_size] = name_of(*ParseShmAddress(address_));
  const std::string theirs_address = NewAddress();
  const auto [theirs, theirs_size] = name_of(*ParseShmAddress(theirs_address));
  int ready[2];
  int over[2];
  ASSERT_EQ(pipe(ready), 0);
  ASSERT_EQ(pipe(over), 0);
  // Another user's process listens, and connects to us; nothing that a fork forbids.
  constexpr uid_t kNobody = 65534;
  const pid_t child = fork();
  if (child == 0) {
    close(over[1]);
    if (setuid(kNobody) != 0) _exit(1);
    const int listener = socket(AF_UNIX, SOCK_SEQPACKET, 0);
    if (bind(listener, reinterpret_cast<const sockaddr*>(&theirs), theirs_size) != 0) _exit(2);
    if (listen(listener, 1) != 0 || write(ready[1], "r", 1) != 1) _exit(3);
    const int connector = socket(AF_UNIX, SOCK_SEQPACKET, 0);
    if (connect(connector, reinterpret_cast<const sockaddr*>(&ours), ours_size) != 0) _exit(4);
    char byte;
    if (recv(connector, &byte, 1, 0) > 0) _exit(5);  // it is told nothing, and cut
    (void)!read(over[0], &byte, 1);
    _exit(0);
  }
  close(over[0]);
  close(ready[1]);
  char byte;
  ASSERT_EQ(read(ready[0], &byte, 1), 1);
  const absl::Status status =
      client_->ConnectNow(PeerAt(theirs_address, LinkSecurity::kAuthenticated, {}, kSecret))
          .status();
  EXPECT_TRUE(absl::IsPermissionDenied(status)) << status;
  EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("of another user's process"));
  close(over[1]);
  int result = -1;
  ASSERT_EQ(waitpid(child, &result, 0), child);
  EXPECT_EQ(result, 0);
  EXPECT_EQ(inbox_.size(), 0u);
  close(ready[0]);
}

TEST_F(ShmTransportTest, CutsWhoSendsMoreThanIsTaken) {
  const ConnectionId to_server = Start({.max_payload_bytes = 1000});
  client_->Send(to_server, FrameOf(1, 1000), completions_.Expect());
  inbox_.WaitFor(1);
  client_->Send(to_server, FrameOf(2, 1001), completions_.Expect());
  AwaitTrue([&] { return server_->stats().connections_cut == 1; });
  // It comes back, and what it sends then is taken; what it sent meanwhile may be lost.
  AwaitTrue([&] {
    client_->Send(to_server, FrameOf(3, 10), completions_.Expect());
    return inbox_.size() > 1;
  });
  EXPECT_EQ(inbox_.WaitFor(2).at(1).frame.header.step, 3u);
}

TEST_F(ShmTransportTest, RefusesWhoDoesNotKnowTheSecretOrIsNotOfTheRoster) {
  Start();
  auto stranger = *ShmTransport::Make({.key = *PublicKey::FromBytes(RandomSecret())});
  stranger->Start(back_.Handler());
  Completions ends;
  for (const std::string& secret : {kSecret, std::string(32, 'x'), std::string()}) {
    stranger->Send(*stranger->Connect(Server(secret)), FrameOf(9, 10), ends.Expect());
  }
  AwaitTrue([&] { return server_->stats().connections_refused >= 6; });
  EXPECT_EQ(inbox_.size(), 0u);
  stranger->Close();
  stranger->Join();
  for (const absl::Status& status : ends.WaitForAll()) EXPECT_TRUE(absl::IsUnavailable(status));
}

TEST_F(ShmTransportTest, OutlivesGarbageOnItsSocket) {
  const ConnectionId to_server = Start();
  const std::string name = *ParseShmAddress(address_);
  for (size_t size : {size_t{1}, size_t{4}, sizeof(ShmHello) - 1, sizeof(ShmHello), size_t{5000}}) {
    const FileDescriptor socket = *ConnectTo(name);
    const std::vector<std::byte> garbage(size, std::byte{0x5a});
    EXPECT_TRUE(SendPacket(socket.get(), garbage));
    AwaitTrue([&] { return ReceivePacket(socket.get()).result == Packet::Result::kEnd; });
  }
  // One that would be let in, but without its memory.
  ShmHello hello{.secret_bytes = static_cast<uint32_t>(kSecret.size()),
                 .key = client_->public_key().bytes};
  std::copy(kSecret.begin(), kSecret.end(), hello.secret.begin());
  const FileDescriptor socket = *ConnectTo(name);
  EXPECT_TRUE(SendPacket(socket.get(), BytesOf(hello)));
  AwaitTrue([&] { return ReceivePacket(socket.get()).result == Packet::Result::kEnd; });
  client_->Send(to_server, FrameOf(1, 10), completions_.Expect());
  inbox_.WaitFor(1);
}

// Any process may connect to a socket of the abstract kind, as often as it likes.
TEST_F(ShmTransportTest, AFloodOfConnectionsThatHangUpLeavesThePollerToItsFrames) {
  // Time stands still: in one turn, and while it rests, little is taken.
  const ConnectionId to_server = Start({.clock = &clock_});
  client_->Send(to_server, FrameOf(1, 10), completions_.Expect());
  inbox_.WaitFor(1);
  constexpr uint64_t kFlood = 500;
  const std::string name = *ParseShmAddress(address_);
  for (uint64_t i = 0; i < kFlood; ++i) ASSERT_TRUE(ConnectTo(name).ok());  // and gone
  AwaitTrue([&] { return server_->stats().connections_refused > 0; });
  for (int i = 0; i < 200; ++i) {
    client_->Send(to_server, FrameOf(1, 1000), completions_.Expect());
    inbox_.WaitFor(static_cast<size_t>(i) + 2);
  }
  EXPECT_LE(server_->stats().connections_refused, kFlood / 10);
  // A peer that belongs there is admitted when the flood is over.
  const ConnectionId late = *client_->ConnectNow(Server());
  client_->Send(late, FrameOf(2, 10), completions_.Expect());
  AwaitTrue([&] {
    clock_.Advance(absl::Milliseconds(50));
    return inbox_.size() == 202 && server_->stats().connections_refused >= kFlood;
  });
}

TEST(ShmAddress, IsAFileWhereOnlyItsUserComesAndElseAName) {
  std::string directory = ::testing::TempDir() + "bdn-XXXXXX";
  ASSERT_NE(mkdtemp(directory.data()), nullptr);
  const std::string name = *ParseShmAddress(NewShmAddress(directory));
  EXPECT_EQ(name.find(directory + "/bandoneon-"), 0u) << name;
  EXPECT_NE(NewShmAddress(directory), NewShmAddress(directory));
  {
    const ShmListeningSocket listener = *ListenAt(name);
    EXPECT_TRUE(ConnectTo(name).ok());
    EXPECT_TRUE(absl::IsAlreadyExists(ListenAt(name).status()));
    EXPECT_TRUE(ConnectTo(name).ok());
    (void)NewShmAddress(directory);
    EXPECT_TRUE(ConnectTo(name).ok()) << "somebody listens there";
  }
  EXPECT_TRUE(absl::IsNotFound(ConnectTo(name).status()));
  // The file that a killed process has left goes with the next listener.
  const int left = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  sockaddr_un at = {.sun_family = AF_UNIX, .sun_path = {}};
  name.copy(at.sun_path, sizeof(at.sun_path) - 1);
  ASSERT_EQ(bind(left, reinterpret_cast<const sockaddr*>(&at), sizeof(at)), 0);
  close(left);
  EXPECT_EQ(access(name.c_str(), F_OK), 0);
  (void)NewShmAddress(directory);
  EXPECT_NE(access(name.c_str(), F_OK), 0);
  for (const std::string& elsewhere :
       {std::string(), std::string("relative"), directory + "/nowhere",
        directory + "/" + std::string(100, 'x')}) {
    EXPECT_EQ(NewShmAddress(elsewhere).find("shm://bandoneon-"), 0u) << elsewhere;
  }
  ASSERT_EQ(chmod(directory.c_str(), 0755), 0);
  EXPECT_EQ(NewShmAddress(directory).find("shm://bandoneon-"), 0u);
  EXPECT_EQ(rmdir(directory.c_str()), 0);
}

// Ends the sockets of all connections of this process, both ends of each.
void EndAllSockets() {
  DIR* const open = opendir("/proc/self/fd");
  ASSERT_NE(open, nullptr);
  while (const dirent* entry = readdir(open)) {
    const int fd = std::atoi(entry->d_name);
    int type = 0;
    int listens = 0;
    socklen_t size = sizeof(int);
    if (getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size) != 0 || type != SOCK_SEQPACKET) continue;
    if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) != 0 || listens != 0) continue;
    shutdown(fd, SHUT_RDWR);
  }
  closedir(open);
}

TEST_F(ShmTransportTest, KeepsAPayloadThatIsReadAfterTheEndOfItsSocket) {
  const ConnectionId to_server = Start();
  client_->Send(to_server, FrameOf(1, 10), completions_.Expect());
  inbox_.WaitFor(1);
  BufferPool pool(client_->memory());
  Buffer payload = pool.Get(10'000);
  std::memset(payload.data(), 7, payload.size());
  client_->Send(to_server, MakeFrame(FrameOf(2, 0).header, payload), completions_.Expect());
  inbox_.WaitFor(2);
  completions_.WaitForAll();
  EndAllSockets();
  // The connection has come back once a frame goes by it; which ones are lost before is not known.
  for (uint64_t step = 3; inbox_.size() < 3; ++step) {
    client_->Send(to_server, FrameOf(step, 10), completions_.Expect());
    absl::SleepFor(absl::Milliseconds(1));
  }
  EXPECT_FALSE(payload.IsUnique()) << "the server still reads it";
  inbox_.Clear();
  const absl::Time limit = absl::Now() + absl::Seconds(30);
  while (!payload.IsUnique() && absl::Now() < limit) absl::SleepFor(absl::Milliseconds(1));
  EXPECT_TRUE(payload.IsUnique());
}

TEST_F(ShmTransportTest, GivesUpAHandshakeThatIsNotGoneOnWith) {
  Start({.handshake_timeout = absl::Milliseconds(20)});
  const FileDescriptor silent = *ConnectTo(*ParseShmAddress(address_));
  AwaitTrue([&] { return ReceivePacket(silent.get()).result == Packet::Result::kEnd; });
  EXPECT_GE(server_->stats().connections_refused, 1u);
}

TEST_F(ShmTransportTest, SaysWhoIsNotThere) {
  Start();
  EXPECT_TRUE(absl::IsNotFound(client_->ConnectNow(PeerAt("shm://bdn-test-nobody")).status()));
  const ConnectionId now = *client_->ConnectNow(Server());
  client_->Send(now, FrameOf(1, 10), completions_.Expect());
  inbox_.WaitFor(1);
  EXPECT_TRUE(client_->WasUp(now));
  const ConnectionId never = *client_->Connect(PeerAt("shm://bdn-test-nobody"));
  EXPECT_FALSE(client_->WasUp(never));
}

}  // namespace
}  // namespace bdn
